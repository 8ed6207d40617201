"""Bars as a PNG, drawn by libtern (tern_figure_save)."""
import ctypes
import os


class Bar(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_double), ("low", ctypes.c_double), ("high", ctypes.c_double), ("colour", ctypes.c_int)]


class Bars(ctypes.Structure):
    _fields_ = [("title", ctypes.c_char_p), ("bars", ctypes.POINTER(Bar)), ("count", ctypes.c_int)]


class Figure(ctypes.Structure):
    _fields_ = [("title", ctypes.c_char_p), ("pictures", ctypes.c_void_p), ("picture_count", ctypes.c_int), ("across", ctypes.c_int),
                ("bars", ctypes.POINTER(Bars)), ("bars_count", ctypes.c_int), ("charts", ctypes.c_void_p), ("chart_count", ctypes.c_int)]


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("native", ctypes.c_int), ("func", ctypes.c_char_p), ("text", ctypes.c_char * 512)]


def save_bars(build, path, title, panels):
    """panels: [(title, [(name, value, low, high, colour)])]."""
    library = ctypes.CDLL(os.path.join(build, "libtern.so"))
    bars = [(Bar * len(rows))(*(Bar(row[0].encode(), *row[1:]) for row in rows)) for _, rows in panels]
    array = (Bars * len(panels))(*(Bars(text.encode(), rows, len(rows)) for (text, _), rows in zip(panels, bars)))
    figure, err = Figure(title.encode(), None, 0, 0, array, len(panels), None, 0), Error()
    if library.tern_figure_save(path.encode(), ctypes.byref(figure), ctypes.byref(err)):
        raise OSError(f"{path}: {err.text.decode()}")
