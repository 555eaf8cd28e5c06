"""Run programs that models wrote without risk to the machine. `launch.py` explains the walls.

`open_sandbox()` attacks itself first and refuses to open if an attack gets through.
"""

from dirigent.sandbox.box import Sandbox, Verdict, open_sandbox, open_untested
from dirigent.sandbox.launch import Ran, SandboxError
from dirigent.sandbox.profile import Profile

__all__ = ["Profile", "Ran", "Sandbox", "SandboxError", "Verdict", "open_sandbox", "open_untested"]
