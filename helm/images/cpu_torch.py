"""Takes out of an installed torch what only a GPU needs: 4 GB. For images of agents that have none.

    python3 cpu_torch.py SITE_PACKAGES

The package index has one torch for x86. It is linked against CUDA's libraries and does not load without them, but on a
machine without a GPU calls none except those that look for one. The others are replaced with libraries of the same
names and symbols: a call of one ends the process. Needs gcc and readelf.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

KEPT = ("libcudart", "libcufile", "libcudnn.so", "libcupti", "libnvshmem_host")
"""What torch asks for GPUs, and what it takes data from while it loads."""
GPU_ONLY = ("nvidia", "triton", "cuda")
_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
_SYMBOL = re.compile(r"(\S+) (\w+)(?:@@?(\S+).*)?$", re.MULTILINE)
"""Section, name, and version of a dynamic symbol."""


def main() -> None:
    packages = Path(sys.argv[1])
    target = packages / "torch/lib"
    found = {path.name: path for path in (packages / "nvidia").rglob("lib/*.so*")}
    needed: set[str] = set()
    wanted: set[str] = set()
    for path in target.glob("*.so"):
        needed |= set(_NEEDED.findall(_readelf("--dynamic", path))) & set(found)
        wanted |= {name for section, name, _ in _symbols(path) if section == "UND"}
    for library in needed:
        # Beside torch's own libraries, where it looks first.
        if library.startswith(KEPT):
            shutil.copy(found[library], target / library)
        else:
            own = ((name, version) for section, name, version in _symbols(found[library]) if section != "UND")
            _stand_in(target / library, [symbol for symbol in own if symbol[0] in wanted])
    for package in GPU_ONLY:
        shutil.rmtree(packages / package)


def _stand_in(path: Path, symbols: list[tuple[str, str]]) -> None:
    versions: dict[str, list[str]] = {}
    for name, version in symbols:
        versions.setdefault(version, []).append(f"{name};")
    with TemporaryDirectory() as scratch:
        script, source = Path(scratch, "versions"), Path(scratch, "symbols.c")
        nodes = (f"{version} {{ global: {' '.join(names)} }};" for version, names in versions.items())
        script.write_text("\n".join(nodes))
        source.write_text("\n".join(f"void {name}(void) {{ __builtin_trap(); }}" for name, _ in symbols))
        flags = [f"-Wl,-soname,{path.name}", f"-Wl,--version-script={script}"]
        subprocess.run(["gcc", "-shared", "-nostdlib", *flags, source, "-o", path], check=True)


def _symbols(path: Path) -> list[tuple[str, str, str]]:
    return _SYMBOL.findall(_readelf("--dyn-syms", path))


def _readelf(what: str, path: Path) -> str:
    return subprocess.run(["readelf", "--wide", what, path], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
