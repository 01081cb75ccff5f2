"""Print what an image is made of, as a CycloneDX document: Python's packages and Debian's.

usage: python deploy/sbom.py DIRECTORY    (where `podman image mount` has the image)

Needs cyclonedx-bom, which knows Python's packages: pip install -r requirements/sbom.txt. Those of
Debian are read where dpkg and distroless images have them.
"""

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

Json = dict[str, Any]

# Stands in for the image's python, which may be of another machine: only its path is asked for.
_PYTHON = "#!/bin/sh\nprintf '%s' {}\n"


def python_packages(root: Path) -> Json:
    """The document of cyclonedx-py on the virtual environment below /opt.

    Raises:
        ValueError: there is none.
        subprocess.CalledProcessError: cyclonedx-py fails; it has said why on stderr.
    """
    places = [str(path) for path in root.glob("opt/*/lib/python3*/site-packages")]
    if not places:
        raise ValueError(f"{root}: wanted an image of these daemons, found no /opt/*/lib/python3*")
    with tempfile.TemporaryDirectory() as directory:
        python = Path(directory) / "python"
        python.write_text(_PYTHON.format(shlex.quote(json.dumps(places))))
        python.chmod(0o755)
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
        done = subprocess.run([*command, python], stdout=subprocess.PIPE, check=True)  # noqa: S603 - ours
    document: Json = json.loads(done.stdout)
    return document


def debian_packages(root: Path) -> Iterator[Json]:
    """A component for each package that dpkg or distroless has noted, by name."""
    library = root / "var/lib/dpkg"
    files = [library / "status", *(library / "status.d").glob("*")]
    texts = [file.read_text() for file in files if file.is_file() and file.suffix != ".md5sums"]
    parser = HeaderParser()
    records = (parser.parsestr(part) for text in texts for part in text.split("\n\n"))
    for record in sorted((each for each in records if "Package" in each), key=_name):
        name, version = record["Package"], record["Version"]
        purl = f"pkg:deb/debian/{name}@{quote(version, safe='')}?arch={record['Architecture']}"
        yield {
            "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
        }  # fmt: skip


def _name(record: Any) -> str:
    return str(record["Package"])


def main(arguments: list[str]) -> int:
    """Print the document of the image in a directory."""
    [directory] = arguments
    root = Path(directory).resolve(strict=True)
    document = python_packages(root)
    document.setdefault("components", []).extend(debian_packages(root))
    json.dump(document, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
