"""Questions with exact answers: tasks, their graders, and the public benchmarks."""

from dirigent.tasks.task import Grade, Sketch, SketchStep, Task, grade

__all__ = ["Grade", "Sketch", "SketchStep", "Task", "grade"]
