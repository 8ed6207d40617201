"""Makes a kernel as nvcc compiled it run on the CPU: compile.py --objects FOLDER --to FOLDER FILE KERNEL prints the path of a shared
object with the kernel of this mangled name in src/cuda/kernels/FILE.cu, whose object FILE.cu.o is in the first folder.

Beside machine code the object has the kernels in PTX, the instructions that the GPU's driver or ptxas turns into machine code. Each
instruction becomes a call of the function of its name in ptx.h, a branch a goto, and a C++ compiler does the rest. Results are kept in the
second folder, and made anew if what they were made from is newer."""
import argparse
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shlex
import struct
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../../..")
INCLUDES = [f"-I{ROOT}/include", f"-I{ROOT}/src"]
# As exact as a GPU: no sum is fused with a product, and rounding may change at any time. Not optimised: that would take longer than it saves.
CXX = ["-std=c++17", "-O0", "-w", "-fwrapv", "-frounding-math", "-ffp-contract=off", "-fPIC", *INCLUDES]

WIDTH = {"pred": 8, "u8": 8, "s8": 8, "b8": 8, "u16": 16, "s16": 16, "b16": 16, "f32": 32, "f64": 64, **{f"{kind}{bits}": bits for kind in "usb" for bits in (32, 64)}}


def register_type(name):
    return "bool" if name == "pred" else f"uint{WIDTH[name]}_t"


def memory_type(name):
    return f"int{WIDTH[name]}_t" if name[0] == "s" else register_type(name)


def identifier(name):
    """A name of PTX in C++."""
    return re.sub(r"[%$.]", "_", name)


def value(text):
    """An operand in C++."""
    if re.match("0[fd]", text, re.IGNORECASE):
        return f"0x{text[2:]}u" if text[1] in "fF" else f"0x{text[2:]}ull"
    if re.fullmatch(r"-?\d+", text):
        return f"(uint64_t){text}ull"
    special = re.fullmatch(r"%(n?tid|n?ctaid)\.([xyz])", text)
    if special:
        return f"m->{special[1]}[{'xyz'.index(special[2])}]"
    return identifier(text)


def address(text):
    """[place+offset] in C++."""
    place, offset = re.fullmatch(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\d+))?\s*\]", text).groups()
    return value(place) if offset is None else f"{value(place)} + {value(offset)}"


def operands(text):
    """Splits at commas outside of brackets."""
    parts = re.findall(r"(?:[^,{\[(]|\{[^}]*\}|\[[^\]]*\]|\([^)]*\))+", text)
    return [part.strip() for part in parts if part.strip()]


def vector(text):
    return [value(part) for part in operands(text.strip("{} \t\n"))]


def call(function, *arguments):
    return f"{function}({', '.join(arguments)});"


# ---- instructions ----

def move_vector(opcode, to, source):
    split = to.startswith("{")
    parts = vector(to if split else source)
    each = str(WIDTH[opcode.split(".")[-1]] // len(parts))
    parts = [f"unused{each}" if part == "_" else part for part in parts]
    return call("split", each, value(source), *parts) if split else call("join", each, value(to), *parts)


def access(opcode, first, second):
    """ld and st: the type is the last word, and the space is one of the others if it is not any."""
    name, *words = opcode.split(".")
    space = next((word for word in words if word in ("global", "shared", "local", "param")), "generic").upper()
    place, registers = (second, first) if name == "ld" else (first, second)
    return call(f"{'load' if name == 'ld' else 'store'}<{memory_type(words[-1])}>", "m", space, address(place), *vector(registers))


def atom(opcode, to, place, *others):
    _, space, what, kind = opcode.split(".")
    return call(f"atom_{what}<{memory_type(kind)}>", "m", space.upper(), value(to), address(place), *map(value, others))


def called(text):
    """call.uni (result), function, (arguments)"""
    result, function, arguments = operands(text)
    return call(identifier(function), "m", *(identifier(name.strip()) for name in (result.strip("()") + "," + arguments.strip("()")).split(",")))


def plain(opcode, *parts):
    """An instruction that is a function of ptx.h. A second result, as of p|q, is not used by any kernel."""
    arguments = [address(part) if part[0] == "[" else value(part.split("|")[0]) for part in parts]
    return call(identifier(opcode.replace("::", ".")), "m", *arguments)


def instruction(text):
    guard = re.match(r"@(!?)(%\w+)\s+(.*)", text, re.DOTALL)
    if guard:
        return f"if ({guard[1]}{identifier(guard[2])}) {{ {instruction(guard[3])} }}"
    opcode, rest = re.match(r"([\w.:]+)\s*(.*)", text, re.DOTALL).groups()
    name, parts = opcode.split(".")[0], operands(rest)
    if name == "bra":
        return f"goto {identifier(parts[0])};"
    if name == "ret":
        return "return;"
    if name == "call":
        return called(rest)
    if name == "mov" and "{" in rest:
        return move_vector(opcode, *parts)
    if name in ("ld", "st"):
        return access(opcode, *parts)
    return atom(opcode, *parts) if name == "atom" else plain(opcode, *parts)


# ---- declarations ----

def registers(kind, names):
    """%r<4> declares %r0 to %r3."""
    all_names = []
    for name in operands(names):
        many = re.fullmatch(r"(%\w+)<(\d+)>", name)
        all_names += [many[1] + str(i) for i in range(int(many[2]))] if many else [name]
    return f"{register_type(kind)} {', '.join(map(identifier, all_names))};"


def declaration(text):
    """Names of memory are variables with its address; shared memory is declared with the kernel."""
    if text.startswith(".reg"):
        return registers(*re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text, re.DOTALL).groups())
    local = re.fullmatch(r"\.(?:local|param)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(\w+)(?:\[(\d+)\])?", text)
    if local:
        align, kind, name, count = local[1] or "8", local[2], local[3], local[4] or "1"
        return f"alignas({align}) char {name}_bytes[{WIDTH[kind] // 8 * int(count)}]; const uint64_t {name} = (uint64_t){name}_bytes;"
    return ""


def body(text):
    """Statements, labels and scopes between a function's braces. The braces of a vector are within a statement."""
    lines, statement = [], ""
    for token in re.findall(r"::|[{};:]|[^{};:]+", text):
        if token == ";" and statement.strip():
            text = statement.strip()
            lines.append(declaration(text) if text[0] == "." else instruction(text))
            statement = ""
        elif token == ":":
            lines.append(f"{identifier(statement.strip())}:;")
            statement = ""
        elif token in "{}" and not statement.strip():
            lines.append(token)
        elif token != ";":
            statement += token
    return "\n".join(line for line in lines if line)


def between_braces(text):
    return text[text.index("{") + 1 : text.rindex("}")]


def function(text):
    """A function that kernels call: its result and arguments are addresses of memory."""
    result, name, arguments = re.match(r"\.func\s+\(\.param\s+\.\w+\s+(\w+)\)\s*([\w$]+)\s*\(([^)]*)\)", text).groups()
    names = [result, *re.findall(r"(\w+)\s*(?:,|$)", arguments.strip())]
    return f"static void {identifier(name)}(const machine *m, {', '.join(f'uint64_t {identifier(n)}' for n in names)})\n{{\n{body(between_braces(text))}\n}}\n"


def shared_memory(declarations):
    """Returns variables with the offsets, and the size: what a launch asks for follows what the kernel declares."""
    lines, at, behind = [], 0, []
    for text in declarations:
        align, kind, name, count = re.search(r"\.align\s+(\d+)\s+\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?", text).groups()
        if text.startswith(".extern"):
            behind.append(name)
            continue
        at = -(-at // int(align)) * int(align)
        lines.append(f"const uint64_t {identifier(name)} = {at};")
        at += WIDTH[kind] // 8 * int(count or 1)
    size = -(-at // 16) * 16
    return lines + [f"const uint64_t {identifier(name)} = {size};" for name in behind], size


def kernel(text, shared, functions):
    names = re.findall(r"\.param[^,)]*?(\w+)(?:\[\d+\])?\s*[,)]", text[: text.index("{")])
    lines, size = shared_memory(shared)
    lines += [f"const uint64_t {identifier(name)} = (uint64_t)args[{i}];" for i, name in enumerate(names)]
    lines += [f"uint{bits}_t unused{bits};" for bits in (16, 32)]
    start = f'extern "C" const unsigned compiled_shared = {size};\nextern "C" void compiled_run(const machine *m, void **args)\n'
    return '#include "ptx.h"\n' + "".join(map(function, functions)) + start + "{\n" + "\n".join([*lines, body(between_braces(text))]) + "\n}\n"


# ---- a file's kernels ----

def anonymous(name):
    """45_GLOBAL__N__84d98312_12_dice_loss_cu_753f7741 becomes 12_GLOBAL__N_1, as g++ has it. The number counts the characters behind it, and
    may follow another one."""
    at = re.search(r"(\d+)(_GLOBAL__N__|_INTERNAL_)", name)
    if not at:
        return name
    for first in range(at.start(1), at.end(1)):
        end = at.end(1) + int(name[first : at.end(1)])
        if re.search(r"_cu_[0-9a-f]{8}$", name[at.end(1) : end]):
            return name[:first] + "12_GLOBAL__N_1" + anonymous(name[end:])
    raise SystemExit(f"compile.py: cannot read {name}")


def mentions(text, name):
    return re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text)


def index(ptx):
    """Where each kernel is in the PTX of a file, by name, and the declarations of shared memory and the functions that they may use."""
    starts = [found.start() for found in re.finditer(r"^(?:\.visible |\.weak )?\.(?:entry|func)\b", ptx, re.MULTILINE)]
    kernels, functions = {}, {}
    for start, end in zip(starts, starts[1:] + [len(ptx)]):
        name = re.compile(r"(?:\.\w+ )?\.entry\s+(\w+)").match(ptx, start)
        if name:
            kernels.setdefault(anonymous(name[1]), []).append((start, end))
        elif ptx.startswith(".func", start) and "{" in ptx[start:end]:
            functions[re.compile(r"\.func\s+\([^)]*\)\s*([\w$]+)").match(ptx, start)[1]] = ptx[start:end]
    shared = re.findall(r"^\s*((?:\.extern )?\.shared[^;]*);", ptx, re.MULTILINE)
    return {"kernels": kernels, "functions": functions, "shared": shared}


def translated(path, name):
    """C++ of a kernel in a file of write_ptx, with the shared memory and the functions that it uses."""
    with open(path, "rb") as file:
        parts = json.loads(file.readline())
        places = parts["kernels"].get(name, [])
        if len(places) != 1:
            raise SystemExit(f"compile.py: {len(places)} kernels are called {name}")
        (start, end), = places
        file.seek(start, os.SEEK_CUR)
        text = file.read(end - start).decode("ascii")
    return kernel(text, [declared for declared in parts["shared"] if mentions(text, re.findall(r"[a-zA-Z_$][\w$]*", declared)[-1])],
                  [function for called_name, function in parts["functions"].items() if mentions(text, called_name)])


# ---- objects of nvcc ----

def section(elf, name):
    """A section of a 64-bit object."""
    table, size, count, names = (*struct.unpack_from("<Q", elf, 40), *struct.unpack_from("<HHH", elf, 58))
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    for header in headers:
        at = headers[names][4] + header[0]
        if elf[at : elf.index(b"\0", at)] == name:
            return elf[header[4] : header[4] + header[5]]
    raise SystemExit(f"compile.py: no section {name.decode()}")


def unpacked(data, flags, size):
    """nvcc before 13 packs with LZ4, later with zstd."""
    to = ctypes.create_string_buffer(size)
    if flags & 0x8000:
        unpack = ctypes.CDLL("libzstd.so.1").ZSTD_decompress
        unpack.restype = ctypes.c_size_t
        done = unpack(to, ctypes.c_size_t(size), data, ctypes.c_size_t(len(data)))
    elif flags & 0x2000:
        done = ctypes.CDLL("liblz4.so.1").LZ4_decompress_safe(data, to, len(data), size)
    else:
        return data
    if done != size:
        raise SystemExit("compile.py: the object's PTX cannot be unpacked")
    return to.raw


def ptx_of(path):
    """The PTX in an object, of the newest GPU that it was compiled for, without comments. A container (of 16 bytes and its content) has an
    entry for each GPU and kind of code: its header has the kind, 1 for PTX, its own size and the content's, and at 16, 28, 40 and 56 the
    packed size, the GPU, flags and the size when unpacked."""
    with open(path, "rb") as file:
        data = section(file.read(), b".nv_fatbin")
    found, at = {}, 0
    while at + 16 <= len(data):
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != 0xBA55ED50:
            raise SystemExit(f"compile.py: {path} is not as nvcc writes it")
        at, end = at + header, at + header + size
        while at < end:
            kind, _, header, size, packed = struct.unpack_from("<HHIQI", data, at)
            gpu, flags, whole = (struct.unpack_from(form, data, at + offset)[0] for form, offset in (("<I", 28), ("<Q", 40), ("<Q", 56)))
            if kind == 1:
                content = data[at + header : at + header + (packed or size)]
                found[gpu] = unpacked(content, flags, whole)
            at += header + size
        at += -at % 8
    if not found:
        raise SystemExit(f"compile.py: {path} has no PTX: the newest of TERN_CUDA_ARCHITECTURES is to be a virtual one, too")
    return re.sub(r"//[^\n]*", "", found[max(found)].rstrip(b"\0").decode())


# ---- files ----

def newest(*parts):
    """The time of the newest file in some folders."""
    return max(os.path.getmtime(os.path.join(folder, name)) for part in parts for folder, _, names in os.walk(os.path.join(ROOT, part)) for name in names)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"compile.py: {shlex.join(command)}\n{done.stdout}{done.stderr}")


def made(path, since, make):
    """Has make(path) write a file that is missing or older than the sources; another process may be making it."""
    with open(path + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path) or os.path.getmtime(path) < since:
            make(path + ".new")
            os.replace(path + ".new", path)
    return path


def write_ptx(source, to):
    """Writes a line with the index of an object's PTX, and the PTX."""
    ptx = ptx_of(source)
    with open(to, "w", encoding="ascii") as file:
        file.write(json.dumps(index(ptx)) + "\n" + ptx)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", metavar="FOLDER", required=True)
    parser.add_argument("--to", metavar="FOLDER", required=True)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("kernel", metavar="KERNEL")
    args = parser.parse_args()
    folder, source = os.path.join(args.to, args.file), os.path.join(args.objects, args.file + ".cu.o")
    os.makedirs(folder, exist_ok=True)
    since = newest("include", "src/base", "tests/cuda/compiled")
    cxx = os.environ.get("CXX", "c++")
    made(os.path.join(args.to, "ptx.h.gch"), since, lambda to: run([cxx, *CXX, "-x", "c++-header", os.path.join(HERE, "ptx.h"), "-o", to]))
    ptx = made(folder + ".ptx", max(os.path.getmtime(source), since), lambda to: write_ptx(source, to))

    def make_object(to):
        with open(to + ".cc", "w", encoding="ascii") as file:
            file.write(translated(ptx, args.kernel))
        run([cxx, *CXX, "-shared", f"-I{args.to}", f"-I{HERE}", to + ".cc", "-o", to])

    name = hashlib.sha256(args.kernel.encode()).hexdigest()[:16]  # mangled names may be longer than a file's may be
    print(made(os.path.join(folder, name + ".so"), os.path.getmtime(ptx), make_object))


main()
