"""Trackers write what can be read back, also after a run went on from an earlier checkpoint."""

import pytest

import coreplay.runtime.tracker as module
from coreplay.errors import InputError
from coreplay.runtime import Config, Event
from coreplay.runtime.observers import watching
from coreplay.runtime.tracker import check_trackers


def config(*trackers):
    return Config.make({"trackers": list(trackers), "federated": {"rounds": 3}})


def first(watch):
    watch(Event("begin", 0, 0, {"rounds": [3, 3], "strategy": "none"}))
    for k in range(3):
        watch(Event("round", 0, k, {"loss": 5.0 - k, "clients": 4}))


def second(watch):
    """Go on where a run was killed: at its checkpoint of two rounds."""
    watch(Event("begin", 0, 2, {"rounds": [3, 3], "strategy": "none"}))
    watch(Event("round", 0, 2, {"loss": 3.0, "clients": 4}))
    watch(Event("evaluated", 0, 3, {"perplexity": 20.5}))
    watch(Event("warning", 0, 3, {"text": "a client was tried again"}))
    watch(Event("end", 1, 0, {"strategy": "none"}))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_event_files_hold_each_step_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for part in (first, second):
        with watching(config("tensorboard"), tmp_path) as watch:
            part(watch)
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(row.step, row.value) for row in read.Scalars("training/loss")] == [(0, 5.0), (1, 4.0), (2, 3.0)]
    assert [(row.step, row.value) for row in read.Scalars("test/perplexity")] == [(3, 20.5)]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_run_is_in_the_run_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    for part in (first, second):
        with watching(config("mlflow"), folder) as watch:
            part(watch)
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("coreplay").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert found.data.params["federated.rounds"] == "3"
    losses = client.get_metric_history(found.info.run_id, "round/loss")
    assert sorted({(row.step, row.value) for row in losses}) == [(0, 5.0), (1, 4.0), (2, 3.0)]
    assert found.data.metrics["evaluated/perplexity"] == 20.5
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_unknown_and_missing_trackers_are_refused(monkeypatch):
    with pytest.raises(InputError, match="unknown tracker 'mlfow': did you mean 'mlflow'"):
        check_trackers(["mlfow"])
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    check_trackers(["mlflow"])
    with pytest.raises(InputError, match=r"'mlflow' needs mlflow: install it with pip install 'coreplay\[trackers\]'"):
        check_trackers(["mlflow"], installed=True)


def test_a_tracker_that_fails_is_left_out_with_a_warning(tmp_path, monkeypatch):
    class Failing(module.Tracker):
        """Fail at the first round."""

        def __call__(self, event):
            if event.kind == "round":
                raise OSError("no connection")

    monkeypatch.setitem(module._registry._known, "failing", Failing)
    told = []
    with watching(config("failing"), tmp_path, told.append) as watch:
        first(watch)
    warnings = [event.facts["text"] for event in told if event.kind == "warning"]
    assert warnings == ["tracker 'failing' failed and gets no more metrics: no connection"]
    assert sum(event.kind == "round" for event in told) == 3
