"""TensorBoard: an event file in the run folder, for `tensorboard --logdir runs`."""

from pathlib import Path

from coreplay.runtime.config import Config
from coreplay.runtime.events import Event
from coreplay.runtime.tracker import Tracker, tracker

TAGS = {"round": "training", "evaluated": "test", "coordination": "coordination", "selected": "selection"}


@tracker("tensorboard", ("tensorboard",))
class TensorBoard(Tracker):
    """Write losses and figures as TensorBoard's event files, into `tensorboard` in the run folder."""

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(config, folder)
        from torch.utils.tensorboard.writer import SummaryWriter

        self._make = SummaryWriter
        self._writer: SummaryWriter | None = None

    def __call__(self, event: Event) -> None:
        """Write the numbers of an event; one that goes on takes back what came after its checkpoint."""
        if event.kind == "begin":
            self._writer = self._make(str(self.folder / "tensorboard"), purge_step=self.step(event))
        elif event.kind in TAGS and self._writer is not None:
            for name, value in event.facts.items():
                if isinstance(value, int | float):
                    self._writer.add_scalar(f"{TAGS[event.kind]}/{name}", value, self.step(event))

    def close(self) -> None:
        """End the event file."""
        if self._writer is not None:
            self._writer.close()
