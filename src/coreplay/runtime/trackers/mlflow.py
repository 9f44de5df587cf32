"""MLflow: a run in the SQLite file `mlflow.db` of the run folder, or where MLFLOW_TRACKING_URI says."""

import os
from pathlib import Path

from coreplay.files import read_text, write_text
from coreplay.runtime.config import Config
from coreplay.runtime.config_toml import flatten
from coreplay.runtime.events import Event
from coreplay.runtime.tracker import Tracker, tracker

EXPERIMENT = "coreplay"
KINDS = ("round", "evaluated", "coordination", "selected")
RUN_ID = "mlflow.run"  # the file that names the MLflow run, for the day the run goes on


@tracker("mlflow", ("mlflow",))
class MLflow(Tracker):
    """Log parameters, losses and figures to MLflow: `mlflow.db` in the run folder, or MLFLOW_TRACKING_URI."""

    def __init__(self, config: Config, folder: Path) -> None:
        super().__init__(config, folder)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would call home
        from mlflow import MlflowClient
        from mlflow.entities import Param

        folder = folder.absolute()
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}")
        known = folder / RUN_ID
        if known.exists():
            self._run = read_text(known).strip()
            return
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        number = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(EXPERIMENT, artifact_location=(folder / "mlflow").as_uri())
        )
        self._run = self._client.create_run(number, run_name=folder.name).info.run_id
        values = [Param(name, str(value)[:500]) for name, value in flatten(config.model_dump()).items()]
        self._client.log_batch(self._run, params=values)
        write_text(known, self._run + "\n")

    def __call__(self, event: Event) -> None:
        """Log the numbers of an event at its step."""
        if event.kind == "begin":
            self._client.update_run(self._run, status="RUNNING")
        elif event.kind == "end":
            self._client.set_terminated(self._run, "FINISHED")
        elif event.kind in KINDS:
            for name, value in event.facts.items():
                if isinstance(value, int | float):
                    self._client.log_metric(self._run, f"{event.kind}/{name}", value, step=self.step(event))
