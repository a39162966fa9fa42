"""What a notebook is told when it comes to a group that was there before: who is lost, what runs, and all that it has not
seen of what was said meanwhile."""

from __future__ import annotations

from ddip import display
from ddip.group import Group
from ddip.magics.group_info import joined
from ddip.magics.replay import Replay


def show_missed(group: Group, screen: display.Screen, live: bool = True) -> bool:
    """`live`: also follows what still runs, until it ends. False: stop was pressed meanwhile."""
    print(joined(group.info()))
    return Replay(group, screen).run(live)
