"""libtern for the tests in Python: the library through ctypes, its error struct, and a call that raises."""
import ctypes
import functools
import glob
import os
import pathlib
import re


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


SCALARS = {
    "void": None, "bool": ctypes.c_bool, "int": ctypes.c_int, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "size_t": ctypes.c_size_t, "float": ctypes.c_float, "double": ctypes.c_double,
}
POINTERS = {"char": ctypes.c_char_p, "int64_t": ctypes.POINTER(ctypes.c_int64)}  # what is returned; others are c_void_p
ENUM = re.compile(r"typedef enum \w*\s*\{[^}]*\}\s*(\w+);")
CALLBACK = re.compile(r"typedef [\w\s]+[\s*]\(\*(\w+)\)\(")
FUNCTION = re.compile(r"^TERN_API ([\w\s]+?)(\**)(tern_\w+)\(([^;]*)\);", re.M)
PARAMETER = re.compile(r"(?:const )?(?:struct )?(\w*)")
UNKNOWN = object()  # a struct by value


@functools.cache
def prototypes():
    """What the functions of the public headers return and expect, by name."""
    headers = glob.glob(os.path.join(os.environ["TERN_SOURCE"], "include", "tern", "*.h"))
    text = "\n".join(pathlib.Path(header).read_text() for header in headers)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"\(\*\w+\)\([^)]*\)(?=[,)])", "*", text)  # a callback without a name for its type
    types = {**dict.fromkeys(ENUM.findall(text), ctypes.c_int), **dict.fromkeys(CALLBACK.findall(text), ctypes.c_void_p), **SCALARS}

    def expected(parameter):
        return ctypes.c_void_p if "*" in parameter or "[" in parameter else types.get(PARAMETER.match(parameter)[1], UNKNOWN)

    found = {}
    for kind, stars, name, parameters in FUNCTION.findall(text):
        kind = kind.split()[-1]
        result = POINTERS.get(kind, ctypes.c_void_p) if stars else types.get(kind, UNKNOWN)
        found[name] = result, [expected(parameter.strip()) for parameter in parameters.split(",") if parameter.strip() != "void"]
    return found


class Library:
    """libtern.so of the build directory TERN_BUILD. `lib.tern_rng_seed(rng, 3)` is a plain call;
    `lib.check(name, ...)` appends a tern_error and raises if it is set. The headers say what a function returns and expects;
    structs, and what a returned pointer points to, are declared with `returns`."""

    def __init__(self):
        self._dll = ctypes.CDLL(os.path.join(os.environ["TERN_BUILD"], "libtern.so"))

    def returns(self, restype, *names):
        for name in names:
            getattr(self, name).restype = restype

    def __getattr__(self, name):
        function = getattr(self._dll, name)
        result, parameters = prototypes()[name]
        if UNKNOWN not in parameters:
            function.argtypes = parameters
        function.restype = None if result is UNKNOWN else result
        setattr(self, name, function)
        return function

    def check(self, name, *args):
        err = Error()
        result = getattr(self, name)(*args, ctypes.byref(err))
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
