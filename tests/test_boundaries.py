"""Who may import whom. Also that the package's own modules are never imported by bare name."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("router", "agent", "kernels", "shared")
ALLOWED = {
    "router": ("trunkline.router", "trunkline.shared", "trunkline.kernels.core"),
    "agent": ("trunkline.agent", "trunkline.shared", "trunkline.kernels"),
    "shared": ("trunkline.shared",),
    "kernels": ("trunkline.kernels", "trunkline.shared"),
}
NO_MODEL = {"torch", "tokenizers", "transformers", "numpy", "safetensors", "gguf", "jinja2"}
"""What a router is installed without."""
FORBIDDEN = {
    "router": NO_MODEL,
    "shared": NO_MODEL,
    "agent": {"transformers"},
    "kernels": {"transformers", "tokenizers"},
}


def sources(package: str) -> list[Path]:
    return [path for path in sorted((ROOT / package).rglob("*.py")) if "target" not in path.parts]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            yield node.module if node.module != "trunkline" else f"trunkline.{node.names[0].name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module"):
            raise AssertionError(f"{path}:{node.lineno}: an import that cannot be checked")


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@pytest.mark.parametrize("package", PACKAGES)
def test_boundaries(package: str) -> None:
    files = sources(package)
    assert files
    wrong = []
    for path in files:
        for module in imports(path):
            top = module.partition(".")[0]
            ours = top == "trunkline" and not any(is_in(module, allowed) for allowed in ALLOWED[package])
            if ours or top in FORBIDDEN[package] or top in PACKAGES:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_what_is_checked_is_what_is_there() -> None:
    """A new top-level package cannot slip past this test."""
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert found == {*PACKAGES, "loadtest"}


def test_every_package_is_installed() -> None:
    """An editable install finds those that are not listed as well; another one leaves them out."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(("trunkline", *path.parent.relative_to(ROOT).parts))
        for package in (*PACKAGES, "loadtest")
        for path in (ROOT / package).rglob("__init__.py")
        if "target" not in path.parts
    }
    assert set(listed) == found


def test_a_router_runs_without_the_packages_of_an_agent() -> None:
    """Nor do the imports of its imports bring them in."""
    modules = [f"trunkline.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}" for path in sources("router")]
    names = [module.removesuffix(".__init__") for module in modules]
    code = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert NO_MODEL.isdisjoint(run.stdout.split())
