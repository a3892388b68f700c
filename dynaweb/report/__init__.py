"""What a run found, for people: statistics with counts and intervals, the closing table, and the HTML report.

    build_report(folder)         report.html of a run folder
    data = gather(folder)        the same as plain values (`data.ReportData`), which can also be filled by hand
    render(data)                 the HTML source (`html`)
    closing_text(data)           the closing table for a terminal (`table`); closing_json(data) for programs

Charts are SVG inside the page (`charts`), and the viewer is plain JavaScript: a report is some 250 KiB and needs
nothing else. Pages that `dynaweb view` serves or writes are `html.Linked` with others, and load trajectories from files
beside them; `listing` is the list of runs, `comparison` puts runs side by side. `dynaweb.serve.site` has their
addresses.
"""

from __future__ import annotations

from dynaweb.report.data import ReportData
from dynaweb.report.gather import build_report, gather
from dynaweb.report.html import render
from dynaweb.report.table import closing_json, closing_text

__all__ = ["ReportData", "build_report", "closing_json", "closing_text", "gather", "render"]
