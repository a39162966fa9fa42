"""The tasks by name."""

from __future__ import annotations

from ddip.study.language import LANGUAGE
from ddip.study.task import Task
from ddip.study.vision import VISION

TASKS: dict[str, Task] = {task.name: task for task in (VISION, LANGUAGE)}
