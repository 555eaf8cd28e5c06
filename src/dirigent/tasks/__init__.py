"""Questions with exact answers: what a task is, how it is graded, and the gym that conductors train in."""

from dirigent.tasks.task import Grade, Sketch, SketchStep, Task, grade

__all__ = ["Grade", "Sketch", "SketchStep", "Task", "grade"]
