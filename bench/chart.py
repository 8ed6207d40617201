"""Bars and curves as PNGs, drawn by libtern (tern_figure_save, tern_chart_save)."""
import ctypes
import os


class Bar(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_double), ("low", ctypes.c_double), ("high", ctypes.c_double), ("colour", ctypes.c_int)]


class Bars(ctypes.Structure):
    _fields_ = [("title", ctypes.c_char_p), ("bars", ctypes.POINTER(Bar)), ("count", ctypes.c_int)]


class Figure(ctypes.Structure):
    _fields_ = [("title", ctypes.c_char_p), ("pictures", ctypes.c_void_p), ("picture_count", ctypes.c_int), ("across", ctypes.c_int),
                ("bars", ctypes.POINTER(Bars)), ("bars_count", ctypes.c_int), ("charts", ctypes.c_void_p), ("chart_count", ctypes.c_int),
                ("legend", ctypes.c_void_p), ("legend_count", ctypes.c_int), ("confusion", ctypes.c_void_p)]


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


class Curve(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("x", ctypes.POINTER(ctypes.c_double)), ("y", ctypes.POINTER(ctypes.c_double)),
                ("low", ctypes.c_void_p), ("high", ctypes.c_void_p), ("count", ctypes.c_int)]


class Chart(ctypes.Structure):
    _fields_ = [("title", ctypes.c_char_p), ("x_label", ctypes.c_char_p), ("y_label", ctypes.c_char_p),
                ("curves", ctypes.POINTER(Curve)), ("count", ctypes.c_int)]


def save_curves(build, path, title, x_label, y_label, curves):
    """curves: [(name, [(x, y)])], drawn by tern_chart_save."""
    library = ctypes.CDLL(os.path.join(build, "libtern.so"))
    numbers = [[(ctypes.c_double * len(points))(*column) for column in zip(*points)] for _, points in curves]
    array = (Curve * len(curves))(*(Curve(name.encode(), x, y, None, None, len(points))
                                    for (name, points), (x, y) in zip(curves, numbers)))
    page, err = Chart(title.encode(), x_label.encode(), y_label.encode(), array, len(curves)), Error()
    if library.tern_chart_save(path.encode(), ctypes.byref(page), ctypes.byref(err)):
        raise OSError(f"{path}: {err.text.decode()}")
