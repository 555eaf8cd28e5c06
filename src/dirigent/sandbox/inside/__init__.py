"""The three programs that run inside a sandbox: an answer that is called, its tests, a whole program.

They are copied into it and run under the system's Python, so they use the standard library and one another only.
"""
