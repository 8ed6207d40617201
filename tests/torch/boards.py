"""libtern's boards for the Python tests: the calls by ctypes, and the files that they write."""
import ctypes
import glob
import os

import events
from ops import Run


class BoardOpts(ctypes.Structure):
    """tern_board_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("tag", ctypes.c_char_p), ("all_ranks", ctypes.c_bool), ("flush_seconds", ctypes.c_double),
                ("queue", ctypes.c_int), ("purge_step", ctypes.c_int64), ("csv", ctypes.c_bool), ("jsonl", ctypes.c_bool)]


class ImageOpts(ctypes.Structure):
    """tern_board_image_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("format", ctypes.c_char_p), ("slice", ctypes.c_int64), ("threshold", ctypes.c_double),
                ("across", ctypes.c_int)]


class StateEntry(ctypes.Structure):
    """tern_state_entry."""

    _fields_ = [("name", ctypes.c_char_p), ("tensor", ctypes.c_void_p), ("is_buffer", ctypes.c_bool)]


class Board:
    """A board in a folder: its calls, and the files it wrote."""

    def __init__(self, folder, run=None, **opts):
        self.run = run or Run()
        self.lib, self.folder = self.run.lib, folder
        self.lib.returns(BoardOpts, "tern_board_defaults")
        self.lib.returns(ImageOpts, "tern_board_image_defaults")
        options = self.lib.tern_board_defaults()
        for name, value in opts.items():
            setattr(options, name, value)
        self.board = ctypes.c_void_p(self.lib.check("tern_board_new", folder.encode(), None, ctypes.byref(options)))

    def scalar(self, tag, value, step):
        self.lib.check("tern_board_scalar", self.board, tag.encode(), ctypes.c_double(value), ctypes.c_int64(step))

    def scalars(self, tag, curves, step):
        names, numbers = (ctypes.c_char_p * len(curves))(*(n.encode() for n in curves)), (ctypes.c_double * len(curves))(*curves.values())
        self.lib.check("tern_board_scalars", self.board, tag.encode(), len(curves), names, numbers, ctypes.c_int64(step))

    def text(self, tag, text, step):
        self.lib.check("tern_board_text", self.board, tag.encode(), text.encode(), ctypes.c_int64(step))

    def image(self, tag, tensor, step, **opts):
        options = self.lib.tern_board_image_defaults()
        for name, value in opts.items():
            setattr(options, name, value)
        self.lib.check("tern_board_image", self.board, tag.encode(), tensor, ctypes.c_int64(step), ctypes.byref(options))

    def histogram(self, tag, tensor, step):
        self.lib.check("tern_board_histogram", self.board, tag.encode(), tensor, ctypes.c_int64(step))

    def hparams(self, values, metrics):
        make = {bool: ("bool", ctypes.c_bool), int: ("int", ctypes.c_int64), float: ("float", ctypes.c_double)}
        table = ctypes.c_void_p(self.lib.check("tern_object_dict"))
        for key, value in values.items():
            if type(value) in make:
                kind, convert = make[type(value)]
                item = self.lib.check(f"tern_object_{kind}", convert(value))
            elif isinstance(value, str):
                item = self.lib.check("tern_object_string", value.encode())
            else:
                item = self.lib.check("tern_object_none" if value is None else "tern_object_list")
            self.lib.check("tern_object_set", table, key.encode(), ctypes.c_void_p(item))
        tags = (ctypes.c_char_p * max(1, len(metrics)))(*(m.encode() for m in metrics))
        try:
            self.lib.check("tern_board_hparams", self.board, table, len(metrics), tags)
        finally:
            self.lib.tern_object_free(table)

    def of_module(self, part, module, step):
        self.lib.check(f"tern_board_{part}", self.board, module, ctypes.c_int64(step))

    def close(self):
        self.lib.tern_board_free(self.board)
        self.run.close()

    def parameter_names(self, module):
        self.lib.returns(StateEntry, "tern_state_get")
        entries = [self.lib.tern_state_get(module, i) for i in range(self.lib.tern_state_count(module))]
        return [e.name.decode() for e in entries if not e.is_buffer]

    def values(self):
        """The values in all files of the folder itself, in order."""
        self.lib.check("tern_board_flush", self.board)
        return [v for path in files(self.folder) for v in events.values(path)]


def files(folder):
    return sorted(glob.glob(os.path.join(folder, "events.out.tfevents.*")))
