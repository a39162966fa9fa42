"""`ddip study NAME`. Exit 0 done, 1 it failed, 2 the request was wrong, 130 interrupted."""

from __future__ import annotations

import importlib
import sys

from ddip.errors import ConfigError

# name → module with main(arguments)
STUDIES = {"staleness": "ddip.study.staleness_command"}


def main(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    place = f"ddip study {name}".rstrip()
    try:
        if name not in STUDIES:
            from ddip.pipeline.ledger import did_you_mean

            raise ConfigError(f"expected a study: {', '.join(STUDIES)}{did_you_mean(name, STUDIES)}")
        return int(importlib.import_module(STUDIES[name]).main(arguments[1:]))
    except ConfigError as error:
        return complain(place, error, 2)
    except KeyboardInterrupt:
        return complain(place, "interrupted", 130)
    except Exception as error:
        from ddip.study.crew import RunFailed

        if isinstance(error, (RunFailed, OSError)):
            return complain(place, error, 1)
        raise


def complain(place: str, error: object, code: int) -> int:
    sys.stdout.flush()
    print(f"{place}: {' '.join(str(error).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
