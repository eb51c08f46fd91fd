"""`python -m monitoring [--check]`, in helm/: writes every file, or says which are not as it writes them.

Exit code 1 if there are some.
"""

import sys
from pathlib import Path

from monitoring import fleet, node, routing
from monitoring.page import page

_ROOT = Path(__file__).parent.parent.parent
DASHBOARDS = (fleet.FLEET, node.NODE, routing.ROUTING)
_DASHBOARDS = _ROOT / "helm/trunkline/files/dashboards"


def main(arguments: list[str]) -> int:
    wanted = {_ROOT / "docs/operate/metrics.md": page()}
    wanted |= {_DASHBOARDS / f"{one.name}.json": one.json() for one in DASHBOARDS}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    stale += [path for path in _DASHBOARDS.glob("*.json") if path not in wanted]
    if arguments == ["--check"]:
        for path in stale:
            print(f"{path.relative_to(_ROOT)} is not what `make monitoring` writes", file=sys.stderr)
        return bool(stale)
    for path in stale:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
