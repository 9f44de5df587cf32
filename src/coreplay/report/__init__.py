"""Report: tables and figures of what the experiments found."""
