"""libtern for the tests in Python: the library through ctypes, its error struct, and a call that raises."""
import ctypes
import os


class Error(ctypes.Structure):
    """tern_error."""

    _fields_ = [
        ("code", ctypes.c_int),
        ("native", ctypes.c_int),
        ("func", ctypes.c_char_p),
        ("text", ctypes.c_char * 512),
    ]


class TernError(Exception):
    """A tern_error that was set; `code` is the tern_status."""

    def __init__(self, err):
        super().__init__(f"{(err.func or b'?').decode()}: {err.text.decode()}")
        self.code = err.code


class Library:
    """libtern.so of the build directory TERN_BUILD. `lib.tern_rng_seed(rng, 3)` is a plain call;
    `lib.check(name, ...)` appends a tern_error and raises if it is set. Declare functions that do not return
    an int with `returns`."""

    def __init__(self):
        self._dll = ctypes.CDLL(os.path.join(os.environ["TERN_BUILD"], "libtern.so"))

    def returns(self, restype, *names):
        for name in names:
            getattr(self._dll, name).restype = restype

    def __getattr__(self, name):
        return getattr(self._dll, name)

    def check(self, name, *args):
        err = Error()
        result = getattr(self._dll, name)(*args, ctypes.byref(err))
        if err.code:
            raise TernError(err)
        return result


def pointer(array):
    """Returns the address of a contiguous numpy array or torch tensor."""
    return ctypes.c_void_p(array.data_ptr() if hasattr(array, "data_ptr") else array.ctypes.data)


def device(name):
    """Returns the device to use for "cpu": TERN_TEST_DEVICE, with which the same tests run on other
    devices."""
    return os.environ.get("TERN_TEST_DEVICE", name) if name == "cpu" else name


def place(lib, module, device):
    """Moves a module to the device if TERN_TEST_DEVICE is set, since that may have memory of its own."""
    if "TERN_TEST_DEVICE" in os.environ:
        lib.check("tern_module_to", module, device)
