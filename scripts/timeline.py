#!/usr/bin/env python3
"""Draws one step of a timeline as SVG, for docs/insight.md. To explore a timeline, use https://ui.perfetto.dev.

    TERN_TRACE=trace.json tern run -n 2 PROGRAM && scripts/timeline.py trace.json STEP >docs/timeline.svg
"""
import json
import sys

LEFT, WIDTH, LANE, BAR = 150, 830, 26, 18
LANES = {"compute": 1, "kernels": 1, "bucket ready": 2, "reduce": 3, "wait": 4}  # lane: track
PARTS = ("forward", "backward", "synchronise", "optimizer step")
COLOURS = {"forward": "#4e79a7", "backward": "#f28e2b", "synchronise": "#e15759", "optimizer step": "#59a14f",
           "kernels": "#9c9ede", "bucket ready": "#333333", "reduce": "#76b7b2", "wait": "#bab0ac"}


def lane_of(event):
    track = event["tid"] - 1000 * event["pid"]
    if track == 1:
        return "compute" if event["name"] in PARTS else "kernels"
    return {number: lane for lane, number in LANES.items()}[track]


def step_of(events, pid, step):
    """Returns a rank's events from the start of the step's forward to the end of its optimizer step."""
    own = [e for e in events if e["pid"] == pid and e["ph"] != "M"]
    begin = next(e["ts"] for e in own if e["name"] == "forward" and e["args"]["step"] == step)
    end = min(e["ts"] + e["dur"] for e in own if e["name"] == "optimizer step" and e["ts"] > begin)
    return [e for e in own if e["ts"] >= begin and e["ts"] + e.get("dur", 0) <= end]


def text(x, y, words, anchor="start", weight="normal"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{words}</text>'


def bar(event, x, y, scale):
    lane = lane_of(event)
    colour = COLOURS[event["name"] if lane == "compute" else lane]
    if event["ph"] == "i":
        return f'<path d="M{x:.1f} {y} l5 {BAR} h-10 z" fill="{colour}"/>'
    width = max(event["dur"] * scale, 0.8)
    box = f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'
    if lane != "compute" or width < 7 * len(event["name"]) + 8:
        return box
    return box + f'<g fill="white">{text(x + 4, y + 13, event["name"])}</g>'


def draw(events, step):
    names = {e["pid"]: e["args"]["name"].partition(" (")[0] for e in events if e["name"] == "process_name"}
    ranks = {pid: step_of(events, pid, step) for pid in sorted(names)}
    begin = min(e["ts"] for own in ranks.values() for e in own)
    scale = WIDTH / (max(e["ts"] + e.get("dur", 0) for own in ranks.values() for e in own) - begin)
    y, out, grid = 8, [], []
    for pid, own in ranks.items():
        out.append(text(8, y + 13, names[pid], weight="bold"))
        for lane in LANES:
            out.append(text(LEFT - 8, y + 13, lane, "end"))
            inner_last = sorted((e for e in own if lane_of(e) == lane), key=lambda e: -e.get("dur", 0))
            out += [bar(e, LEFT + (e["ts"] - begin) * scale, y, scale) for e in inner_last]
            y += LANE
        y += 12
    tick = next(t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if t * 1000 * scale > WIDTH / 12)
    for k in range(int(WIDTH / (tick * 1000 * scale)) + 1):
        x = LEFT + k * tick * 1000 * scale
        grid.append(f'<path d="M{x:.1f} 4 V{y - 8}" stroke="#dddddd" stroke-width="0.5"/>' + text(x, y + 4, f"{k * tick:g} ms", "middle"))
    size = f'width="{LEFT + WIDTH + 30}" height="{y + 14}"'
    style = 'font-family="sans-serif" font-size="12"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>', '<rect width="100%" height="100%" fill="white"/>',
                      *grid, *out, "</svg>"])


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        print(draw(json.load(file), int(sys.argv[2])))
