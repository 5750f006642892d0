"""Writes the alert rules and dashboards of deploy/ from src/postroad/monitoring. `--check`: fails if they are old."""

import sys
from pathlib import Path

from postroad.monitoring.rendering import files

DEPLOY = Path(__file__).parents[1] / "deploy"


def main() -> int:
    wanted = {DEPLOY / name: text for name, text in files().items()}
    stale = [path for path in (DEPLOY / "grafana").glob("*.json") if path not in wanted]
    changed = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in (*changed, *stale):
            print(f"{path.relative_to(DEPLOY.parent)} is old: run `make dashboards`", file=sys.stderr)
        return 1 if changed or stale else 0
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path.relative_to(DEPLOY.parent)}")
    for path in stale:
        path.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
