"""The three programs that run inside a sandbox: an answer that serves calls, its tests, a whole program.

They are copied into the sandbox and run under the system's Python, so they import only the standard library and one
another.
"""
