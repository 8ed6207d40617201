"""A constructor that fails returns NULL, and the program goes on with it and prints the first error at its
end. So every function of the headers must accept NULL. The test calls each one with NULL for every object,
with and without an error that is set already, and with the struct of a module whose tern_module_init has
failed."""
import os
import re
import subprocess
import tempfile
import unittest

import headers
import skips

MAIN = """
static void unwanted(int signal)
{
    _exit(signal);
}

/* Makes each call in a process of its own, so that a crash is reported and the other calls are still made. */
static void try_it(const char *name, void (*call)(tern_error *err), tern_error err)
{
    int status = 0;
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        signal(SIGSEGV, unwanted), signal(SIGABRT, unwanted), signal(SIGALRM, unwanted);
        alarm(20);
        dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
        call(&err);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    if (status) printf("%s of %s%s\\n", name, module ? "a module without tree" : "NULL", err.code ? " after an error" : "");
}

int main(void)
{
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        for (int made = 0; made < 2; made++) {
            module = made ? (tern_module *)room : NULL;
            try_it(all[i].name, all[i].call, (tern_error){.code = TERN_E_IO, .func = "before"});
            try_it(all[i].name, all[i].call, (tern_error){0});
        }
    }
    return 0;
}
"""


def prototypes():
    """Returns {name: [type of each argument]}: empty for (void), and without variadic arguments."""
    with tempfile.TemporaryDirectory() as folder:
        source, seen = os.path.join(folder, "all.c"), os.path.join(folder, "seen")
        with open(source, "w") as file:
            file.write(headers.including(headers.headers()))
        headers.call("gcc", "-fsyntax-only", "-I", headers.INCLUDE, "-aux-info", seen, source)
        with open(seen) as file:
            found = re.findall(rf"^/\* {re.escape(headers.INCLUDE)}/\S+ \*/ .*?\b(tern_\w+) \((.*)\);", file.read(), re.M)
    return {name: [] if types == "void" else re.split(r", (?![^(]*\))", types) for name, types in found}


def argument(name, kind):
    """Returns NULL for an object, a buffer for a pointer to anything else, 0 for a number."""
    if kind == "tern_error *":
        return "err"
    if name.endswith("_free"):
        return "0"
    if kind.endswith("tern_module *"):
        return "module"
    if re.fullmatch(r"(const )?(char|void|int|float|double|u?int\d+_t|size_t|_Bool|tern_batch|tern_[a-z]+_stats) \*{1,2}", kind):
        return "(void *)room"
    return f"({kind}){{0}}"


def program():
    calls, rows = [], []
    for name, kinds in sorted(prototypes().items()):
        kinds = [kind for kind in kinds if kind != "..."]
        calls.append(f"static void call_{name}(tern_error *err)\n{{\n    (void)err;\n    {name}({', '.join(argument(name, kind) for kind in kinds)});\n}}\n")
        rows.append(f'    {{"{name}", call_{name}}},\n')
    start = "#define _GNU_SOURCE\n" + headers.including(["fcntl.h", "signal.h", "stdio.h", "sys/wait.h", "unistd.h", *headers.headers()])
    table = "static const struct {\n    const char *name;\n    void (*call)(tern_error *err);\n} all[] = {\n" + "".join(rows) + "};\n"
    return start + "static char room[1 << 16] __attribute__((aligned(64)));\nstatic tern_module *module;\n" + "".join(calls) + table + MAIN


class Nothing(unittest.TestCase):
    def test_no_function_minds(self):
        with tempfile.TemporaryDirectory() as folder:
            source, binary = os.path.join(folder, "all.c"), os.path.join(folder, "all")
            with open(source, "w") as file:
                file.write(program())
            headers.call("gcc", "-std=c11", "-w", "-I", headers.INCLUDE, *headers.sanitizer(), source, "-o", binary, "-L", headers.BUILD, "-ltern")
            env = {**os.environ, "LD_LIBRARY_PATH": headers.BUILD, "OMP_NUM_THREADS": "1", "TERN_LOG": "error"}
            done = subprocess.run([binary], cwd=folder, env=env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, timeout=250)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        self.assertEqual(done.stdout.splitlines(), [], "these crash")


if __name__ == "__main__":
    skips.main()
