"""What is shown while a run goes on."""

import io

from coreplay.cli.progress import Status, echo, following, following_sweep, show_markdown
from coreplay.experiments.scheduler import FAILED, FINISHED, SweepStatus
from coreplay.experiments.sweep import Sweep
from coreplay.report.text import duration
from coreplay.runtime import Event

EVENTS = [
    Event("begin", 0, 0, {"rounds": [2, 2], "strategy": "none"}),
    Event("client", 0, 0, {"done": 1, "of": 4, "clients": 1, "client": "ann"}),
    Event("warning", 0, 0, {"text": "client 'bo' failed and is tried again: no memory", "done": 1, "of": 4}),
    Event("round", 0, 0, {"loss": 5.5, "clients": 4}),
    Event("round", 0, 1, {"loss": 5.0, "clients": 4}),
    Event("client", 0, 2, {"done": 0, "of": 0, "clients": 0, "client": ""}),
    Event("evaluated", 0, 2, {"perplexity": 200.123}),
    Event("client", 0, 2, {"done": 9, "of": 4, "clients": 4, "client": "bo"}),
    Event("selected", 0, 2, {"clients": 4, "kept": 12}),
]


def test_plain_lines_are_one_a_round_and_period_and_warnings(capsys):
    with following() as observe:
        for event in EVENTS:
            observe(event)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert lines[0] == "warning: client 'bo' failed and is tried again: no memory"
    assert lines[1].startswith("period 1/2, round 1/2, loss 5.5, about ")
    assert lines[3] == "period 1/2 is trained: perplexity 200.1 on all test sets"
    assert lines[4] == "period 1/2: 4 clients selected, 12 samples kept"
    assert len(lines) == 5


def test_status_line_shows_clients():
    status = Status()
    for event in EVENTS[:-1]:
        status.take(event)
    assert status.line() == "period 1/2, evaluating and selecting, client 4/4, loss 5, perplexity 200.1"


def test_a_figure_of_an_earlier_period_says_so():
    status = Status()
    for event in [*EVENTS, Event("client", 1, 0, {"done": 1, "of": 4, "clients": 1, "client": "ann"})]:
        status.take(event)
    assert status.line() == "period 2/2, round 1/2, client 1/4, perplexity 200.1 after period 1"
    status.take(Event("round", 1, 0, {"loss": 4.0, "clients": 4}))
    assert status.line().endswith("loss 4, perplexity 200.1 after period 1")


def test_the_first_seconds_say_what_goes_on(capsys):
    with following() as observe:
        observe(Event("starting", 0, 0, {"workers": 2}))
        observe(Event("starting", 0, 0, {"workers": 1}))
    assert capsys.readouterr().err.splitlines() == ["starting 2 worker processes", "starting 1 worker process"]
    assert Status().line() == "preparing the data and the model"


def test_a_sweep_in_a_pipe_says_once_how_each_run_ended(capsys):
    runs = Sweep.make({"strategies": ["none"], "seeds": [0, 1, 2], "run": {"preset": "small"}}).runs
    status = SweepStatus(runs)
    with following_sweep(status) as show:
        status.set(runs[0], FINISHED, score=12.3456)
        show()
        show()
        status.set(runs[1], FAILED, problem="no memory")  # after the last call
    assert capsys.readouterr().err.splitlines() == ["none-seed0: 12.35", "none-seed1: no memory"]


def test_tables_in_a_pipe_have_no_escapes_but_those_that_keep_the_columns(capsys):
    show_markdown("| naive\\_uniform | a \\| b |")
    assert capsys.readouterr().out == "| naive_uniform | a \\| b |\n"


def test_live_display_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with following() as observe:
        for event in EVENTS:
            observe(event)
    shown = terminal.getvalue()
    assert "warning: client 'bo' failed" in shown
    assert "period 1/2, evaluating and selecting, loss 5, perplexity 200.1" in shown


def test_time_left_is_at_the_pace_of_this_session():
    now = [0.0]
    status = Status(clock=lambda: now[0])
    status.take(Event("begin", 1, 1, {"rounds": [4, 4, 4]}))  # 5 of 12 rounds were done before
    assert status.time_left() == ""
    now[0] = 10.0
    status.take(Event("round", 1, 1, {"loss": 2.0}))
    assert status.time_left() == "about 1 min 0 s left"
    now[0] = 15.0
    status.take(Event("client", 1, 2, {"done": 1, "of": 2}))
    assert status.time_left() == "about 55 s left"


def test_durations():
    assert [duration(s) for s in (0.4, 59.4, 60, 3599, 3600)] == [
        "0 s",
        "59 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
    ]


ESCAPES = "\x1b]0;title\x07\x1b]52;c;aGk=\x07\x9b2J\x1b[31mred\r"


def test_text_from_outside_reaches_the_terminal_without_control_characters(capsys, monkeypatch):
    with following() as observe:
        observe(Event("warning", 0, 0, {"text": f"client {ESCAPES} failed"}))
    show_markdown(f"| run |\n|---|\n| {ESCAPES} |")
    echo(f"error: {ESCAPES}", err=True)
    shown = capsys.readouterr()
    assert not set("\x1b\x07\x9b\r") & set(shown.out + shown.err)
    assert "error: ?]0;title?" in shown.err
    assert shown.out.count("\n") == 3  # lines stay lines

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out, err = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    show_markdown(f"- {ESCAPES}")
    with following() as observe:
        observe(EVENTS[0])
        observe(Event("warning", 0, 0, {"text": f"client {ESCAPES} failed"}))
    for shown in (out.getvalue(), err.getvalue()):
        assert "]0;title" in shown
        assert "\x1b]" not in shown
        assert "\x07" not in shown
        assert "\x9b" not in shown
