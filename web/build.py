"""Build the console: the types of the API from the server's own description, then the pages with Vite.

    python web/build.py            writes src/dirigent/console
    python web/build.py --check    exits 1 if the files there are not what the sources say

The built files are committed, so that a fresh clone without Node runs and tests. Where Node or the packages of
`web/package-lock.json` are missing, --check says so and passes: who changes the sources has them.
"""

from __future__ import annotations

import filecmp
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WEB = Path(__file__).parent.resolve()
BUILT = WEB.parent / "src" / "dirigent" / "console"
TYPES = WEB / "src" / "lib" / "openapi.d.ts"
MOST_BYTES = 250_000
"""Of all files together, compressed."""


def main() -> int:
    check = "--check" in sys.argv[1:]
    if shutil.which("node") is None or not (WEB / "node_modules" / "vite").is_dir():
        print("console          not compared: Node or web/node_modules is missing (make console)")
        return 0 if check else 1
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        write_types(TYPES)
        run("svelte-check", "--tsconfig", "./tsconfig.json", "--fail-on-warnings", "--output", "human")
        run("vite", "build", "--outDir", str(made / "console"), "--emptyOutDir", "--logLevel", "warn")
        if not check:
            shutil.rmtree(BUILT, ignore_errors=True)
            shutil.copytree(made / "console", BUILT)
        elif differences := differing(made / "console", BUILT):
            print(f"the built console is out of date ({', '.join(differences)}): make console")
            return 1
    size = sum(len(gzip.compress(path.read_bytes(), 9)) for path in BUILT.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        print(f"the console has {size:,} bytes compressed; {MOST_BYTES:,} is the most")
        return 1
    print(f"console          {size / 1000:.0f} KB compressed")
    return 0


def write_types(path: Path) -> None:
    """TypeScript types of the API, from the description that the server gives."""
    from dirigent.serve.http.app import ENDPOINTS
    from dirigent.serve.http.openapi import openapi

    description = openapi(ENDPOINTS)
    described = WEB / "node_modules" / "openapi.json"
    described.write_text(json.dumps(description | {"paths": {}}))
    run("openapi-typescript", str(described), "-o", str(path))


def run(program: str, *arguments: str) -> None:
    environment = os.environ | {"NO_COLOR": "1"}
    binary = WEB / "node_modules" / ".bin" / program
    found = subprocess.run([str(binary), *arguments], cwd=WEB, env=environment, capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"{program} failed:\n{found.stdout}{found.stderr}")


def differing(one: Path, other: Path) -> list[str]:
    """Names of files that one folder has and the other does not, or that differ."""
    old, new = ({path.relative_to(root): path for path in root.rglob("*") if path.is_file()} for root in (one, other))
    same = {name for name in old.keys() & new.keys() if filecmp.cmp(old[name], new[name], shallow=False)}
    return sorted(name.as_posix() for name in (old.keys() | new.keys()) - same)


if __name__ == "__main__":
    sys.exit(main())
