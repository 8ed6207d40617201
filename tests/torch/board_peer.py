"""Runs under the peers' Python: `write FOLDER CALLS ARRAYS` makes a SummaryWriter's calls, `read FOLDER..` prints what
TensorBoard's EventAccumulator finds in each folder as JSON."""
import base64
import json
import sys

import numpy


def write(folder, calls, arrays):
    from torch.utils.tensorboard import SummaryWriter

    data = numpy.load(arrays)
    with open(calls) as file, SummaryWriter(folder) as writer:
        for name, args, options in json.load(file):
            getattr(writer, name)(*(data[a[1:]] if isinstance(a, str) and a.startswith("@") else a for a in args), **options)


def found(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder, size_guidance={kind: 0 for kind in ("scalars", "images", "histograms", "tensors")})
    events.Reload()
    tags = events.Tags()
    return {
        "scalars": {t: [(e.step, repr(e.value)) for e in events.Scalars(t)] for t in tags["scalars"]},
        "images": {t: [(e.step, e.width, e.height, base64.b64encode(e.encoded_image_string).decode()) for e in events.Images(t)] for t in tags["images"]},
        "histograms": {t: [(e.step, vars_of(e.histogram_value)) for e in events.Histograms(t)] for t in tags["histograms"]},
        "text": {t: [(e.step, [s.decode() for s in e.tensor_proto.string_val]) for e in events.Tensors(t)]
                 for t in tags["tensors"] if t in events.PluginTagToContent("text")} if tags["tensors"] else {},
    }


def vars_of(h):
    return {"min": h.min, "max": h.max, "num": h.num, "sum": h.sum, "sum_squares": h.sum_squares, "limits": list(h.bucket_limit), "counts": list(h.bucket)}


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
    else:
        json.dump([found(folder) for folder in sys.argv[2:]], sys.stdout)
