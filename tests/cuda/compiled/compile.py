"""Makes a kernel as nvcc compiled it run on the CPU: compile.py --nvcc NVCC --to FOLDER FILE KERNEL prints the path of a shared
object with the kernel of this mangled name in src/cuda/kernels/FILE.cu.

nvcc writes the file's kernels in PTX, the instructions that the GPU's driver or ptxas turns into machine code. Each instruction becomes a
call of the function of its name in ptx.h, a branch a goto, and a C++ compiler does the rest. Results are kept in FOLDER, and made anew if
what they were made from is newer."""
import argparse
import fcntl
import hashlib
import os
import re
import shlex
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../../..")
INCLUDES = [f"-I{ROOT}/include", f"-I{ROOT}/src"]
NVCC = ["--ptx", "-arch=compute_90", "-O3", "-std=c++17", "-DNDEBUG", "-D_GNU_SOURCE", *INCLUDES]
# As exact as a GPU: no sum is fused with a product, and rounding may change at any time.
CXX = ["-std=c++17", "-O1", "-w", "-fwrapv", "-frounding-math", "-ffp-contract=off", "-fPIC", "-shared", *INCLUDES, f"-I{HERE}"]

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


def find_kernel(ptx, name):
    """Returns C++ of the kernel with the shared memory and the functions that it uses."""
    text = re.sub(r"//[^\n]*", "", ptx)
    parts = re.split(r"^(?=(?:\.visible |\.weak )?\.(?:entry|func)\b)", text, flags=re.MULTILINE)
    names = [re.match(r"(?:\.\w+ )?\.entry\s+(\w+)", part) for part in parts]
    entries = [part for part, found in zip(parts, names) if found and anonymous(found[1]) == name]
    if len(entries) != 1:
        raise SystemExit(f"compile.py: {len(entries)} kernels are called {name}")
    shared = re.findall(r"^\s*((?:\.extern )?\.shared[^;]*);", text, re.MULTILINE)
    functions = {re.match(r"\.func\s+\([^)]*\)\s*([\w$]+)", part)[1]: part for part in parts if part.startswith(".func") and "{" in part}
    return kernel(entries[0], [declared for declared in shared if mentions(entries[0], re.findall(r"[a-zA-Z_$][\w$]*", declared)[-1])],
                  [part for called_name, part in functions.items() if mentions(entries[0], called_name)])


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--to", metavar="FOLDER", required=True)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("kernel", metavar="KERNEL")
    args = parser.parse_args()
    folder = os.path.join(args.to, args.file)
    os.makedirs(folder, exist_ok=True)
    ptx = made(folder + ".ptx", newest("include", "src/base", "src/cuda", "src/kernels"), lambda to: run([args.nvcc, *NVCC, f"{ROOT}/src/cuda/kernels/{args.file}.cu", "-o", to]))

    def make_object(to):
        with open(ptx, encoding="utf-8") as source, open(to + ".cc", "w", encoding="utf-8") as translated:
            translated.write(find_kernel(source.read(), args.kernel))
        run([os.environ.get("CXX", "c++"), *CXX, to + ".cc", "-o", to])

    name = hashlib.sha256(args.kernel.encode()).hexdigest()[:16]  # mangled names may be longer than a file's may be
    since = max(os.path.getmtime(ptx), newest("tests/cuda/compiled"))
    print(made(os.path.join(folder, name + ".so"), since, make_object))


main()
