"""horovodrun timeline: reads the timelines that ranks recorded, merges them, reports on them."""

from horovod.runner.timeline.errors import TimelineError
from horovod.runner.timeline.nesting import check_nesting

__all__ = ["TimelineError", "check_nesting"]
