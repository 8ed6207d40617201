"""docs/from-pytorch.md: its programs, in C and in PyTorch, print what the page says. docs/names.md: its
tables have every function. The program of both READMEs prints what they
say, and is the same."""
import concurrent.futures
import fnmatch
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

import document
import forked
import skips
from install import headers

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = document.read("docs/from-pytorch.md")
NAMES = document.read("docs/names.md")
README, CHINESE = document.read("README.md"), document.read("README.zh-CN.md")

NOT_RUN = {"mixed.py": "apex needs CUDA, and is no package of Debian's", "unet3d.py": "apex", "deeplab.py": "Cityscapes is not free to copy"}
NOT_EQUAL = {"any": "PyTorch has three ways where tern has two, and one of the three lets ranks drift apart"}

NO_COUNTERPART = {
    "*_free": "Python collects garbage",
    "*_close": "Python collects garbage",
    "tern_module_release": "Python collects garbage",
    "*_defaults": "options are keyword arguments",
    "tern_error_print": "exceptions",
    "tern_status_*": "exceptions",
    "tern_scope_error": "exceptions",
    "tern_group_abort": "exceptions",
    "tern_allocator_set": "a hook for the embedding program",
    "tern_log_set": "a hook for the embedding program",
    "tern_group_mem_*": "windows that peers read",
    "tern_group_wake": "PyTorch's back ends have threads of their own",
    "tern_work_wait_any": "PyTorch has futures with callbacks",
    "tern_group_from_mpi": "PyTorch takes MPI's world, and no other communicator",
    "tern_preempt_ask": "beside tern_preempt_pending",
    "tern_preempt_fd": "beside tern_preempt_pending",
}


def compile_program(folder, name):
    program = os.path.join(folder, name[:-2])
    headers.call("gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", *headers.sanitizer(), "-I", headers.INCLUDE, program + ".c",
                 "-o", program, "-L", headers.BUILD, "-ltern", f"-Wl,-rpath,{headers.BUILD}")


def has_tensorboard():
    return importlib.util.find_spec("tensorboard") is not None


class Programs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.programs = {**document.programs(PAGE), **document.programs(README)}
        for name, text in cls.programs.items():
            with open(os.path.join(cls.folder, name), "w") as file:
                file.write(text)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda name: compile_program(cls.folder, name), [name for name in cls.programs if name.endswith(".c")]))
        # Debian 13's PyTorch is built without libuv, which it wants unless told otherwise.
        cls.env = {**os.environ, "PATH": f"{headers.BUILD}:/usr/bin:/bin", "OMP_NUM_THREADS": "1", "USE_LIBUV": "0"}
        for name in ("RANK", "WORLD_SIZE", "TERN_DEVICE"):
            cls.env.pop(name, None)

    def run_command(self, command):
        """Programs in Python run in forks, but for the one that starts processes."""
        if not has_tensorboard():
            command = command.replace("python3 record.py", f"python3 {HERE}/without_tensorboard.py record.py")
        env = dict(self.env)
        if "python3" in command:
            env.pop("LD_PRELOAD", None)
        if "spawn.py" not in command:
            command = command.replace("python3", shlex.join(forked.interpreter()))
        return subprocess.run(command, shell=True, cwd=self.folder, env=env, text=True, capture_output=True, timeout=120)

    def test_programs_print_what_the_page_says(self):
        for session in document.sessions(PAGE) + document.sessions(README):
            for command, expected in session:
                if command.endswith("./parts") and len(os.sched_getaffinity(0)) < 2:
                    continue  # there is no cpu:1
                with self.subTest(command=command):
                    done = self.run_command(command)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assertTrue(document.same(done.stdout, expected), f"\n{done.stdout}instead of\n{expected}")

    def test_an_error_ends_a_program_with_its_text(self):
        """After the first error the other calls do nothing, without a check in between."""
        faults = {"tern_group_open(": ({"RANK": "x", "WORLD_SIZE": "2"}, 'RANK="x" is not an integer'),
                  "tern_device_open(NULL": ({"TERN_DEVICE": "none"}, 'device "none": expected')}
        for name, text in self.programs.items():
            for call, (variables, error) in faults.items():
                if not name.endswith(".c") or call not in text or "tern_spawn" in text:
                    continue
                with self.subTest(program=name, call=call):
                    done = subprocess.run([os.path.join(self.folder, name[:-2])], env={**self.env, **variables}, cwd=self.folder, text=True,
                                          capture_output=True, timeout=60)
                    self.assertEqual((done.returncode, done.stdout), (1, ""))
                    self.assertIn(error, done.stderr)

    def test_each_opens_the_others_checkpoint(self):
        """The writer keeps its file and the reader does not write one: after loading it prints what the page
        says. The Python program loads into the net, as the page says, because the names in tern's file have
        no "module."."""
        session = next(session for session in document.sessions(PAGE) if session[0][0].endswith("checkpoint.py"))
        commands = {command.replace("checkpoint", "other"): expected for command, expected in session}
        lines = {"other.py": ("os.remove(", "torch.save("), "other.c": ("unlink(", "tern_save(")}
        for writer, reader in (("other.py", "other.c"), ("other.c", "other.py")):
            for name, line in ((writer, lines[writer][0]), (reader, lines[reader][1])):
                text = self.programs[name.replace("other", "checkpoint")]
                self.assertEqual(text.count(line), 1)
                never = "if (0) " if name.endswith(".c") else "if False: "
                with open(os.path.join(self.folder, name), "w") as file:
                    text = text.replace(line, never + line)
                    file.write(text.replace("model.load", "net.load") if name == reader else text)
            compile_program(self.folder, "other.c")
            for name in (writer, reader):
                command = next(command for command in commands if command.endswith(name.replace(".c", "")))
                with self.subTest(writer=writer, command=command):
                    done = self.run_command(command)
                    self.assertTrue(document.same(done.stdout, commands[command]), done.stdout + done.stderr)
            self.assertFalse(os.path.exists(os.path.join(self.folder, "demo.pt")), "the reader takes it away")

    def test_every_program_is_run(self):
        commands = [command for session in document.sessions(PAGE) + document.sessions(README) for command, _ in session]
        self.assertGreater(len(commands), 15)
        for name in self.programs:
            call = rf"python3 {name}\b" if name.endswith(".py") else rf"\./{name[:-2]}$"
            self.assertEqual(any(re.search(call, command) for command in commands), name not in NOT_RUN, name)

    def test_what_is_not_run_is_python(self):
        for name in NOT_RUN:
            compile(self.programs[name], name, "exec")

    def test_python_and_c_print_the_same(self):
        for session in document.sessions(PAGE):
            name = re.search(r"(\w+)$", session[-1][0]).group(1)
            if len(session) > 1 and name not in NOT_EQUAL:
                with self.subTest(program=name):
                    self.assertTrue(document.same(session[0][1], session[1][1]))


class Excerpts(unittest.TestCase):
    def test_they_stand_in_the_files_that_they_name(self):
        for path, lines in document.excerpts(PAGE):
            with self.subTest(path=path):
                left = [line.strip() for line in document.read(path).splitlines()]
                for line in lines:
                    if line.strip() in ("", "..."):
                        continue
                    self.assertTrue(line.strip() in left, f"{line.strip()} is not there, or not in this order")
                    left = left[left.index(line.strip()) + 1:]

    def test_every_block_of_c_is_a_program_or_an_excerpt(self):
        for language, text in document.blocks(PAGE) + document.blocks(README) + document.blocks(CHINESE):
            if language == "c":
                self.assertRegex(text.splitlines()[0], r"^/\* (\w+\.c|from \S+) \*/$")


class Names(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.functions = set(headers.declarations())
        cls.known = headers.names()
        cls.rows = document.rows(NAMES)

    def listed(self, name):
        """Returns true if the table has the name or a pattern for it (tern_object_*)."""
        return any(fnmatch.fnmatch(name, pattern) for cells in self.rows for text in document.code(cells[-1]) + document.code(cells[0])
                   for pattern in re.findall(r"\btern_\w+\*?", text))

    def test_tern_names_exist(self):
        for text in document.code(PAGE) + document.code(NAMES) + document.code(README) + document.code(CHINESE):
            for name in re.findall(r"\b(?:tern|TERN)_\w+\*?", text):
                if re.match(r"TERN_(BACKEND|DEVICE|LOG|TRACE|PORT|PLUGIN_PATH|EXACT_CONV|DETERMINISTIC|CONV_CACHE|GRAPHS|CUDA_WITHOUT)$", name) or name == "tern_":
                    continue
                with self.subTest(name=name):
                    self.assertTrue(fnmatch.filter(self.known, name), "in no header")

    def test_names_and_files_of_all_pages_exist(self):
        """Also those of the library's inside, and variables. NAME and VERB stand for any."""
        paths = sorted(os.path.join(folder, name) for top in ("include", "src", "cli", "examples", "python", "tests", "bench", "scripts", "cmake",
                                                              "fuzz", "docs", "debian")
                       for folder, _, names in os.walk(os.path.join(document.SOURCE, top)) for name in names)
        texts = [path for path in paths if re.search(r"\.([ch]|cc|cu|def|py|sh|cmake|txt|map)$", path)] + [document.SOURCE + "/CMakeLists.txt"]
        names = set()
        for path in texts:
            with open(path, errors="replace") as file:
                names.update(re.findall(r"\b(?:tern|TERN)_\w+", file.read()))
        for page in document.pages() + ["CONTRIBUTING.md", "SECURITY.md"]:
            text = document.read(page)
            for name in sorted(set(re.findall(r"\b(?:tern|TERN)_\w+\*?", text))):
                with self.subTest(page=page, name=name):
                    self.assertTrue("NAME" in name or name in names or name.endswith("*") and fnmatch.filter(names, name), "in no source")
            for word in sorted(set(document.code(text))):
                if re.fullmatch(r"\w[\w./]*/\w+\.(?:c|h|cc|cu|def|py|sh)", word) and not re.search("NAME|VERB", word):
                    with self.subTest(page=page, file=word):
                        self.assertTrue(any(path.endswith("/" + word) for path in paths), "there is no such file")

    def test_every_function_is_in_the_table(self):
        missing = {name for name in self.functions if not self.listed(name)}
        excused = {name for name in missing if any(fnmatch.fnmatch(name, pattern) for pattern in NO_COUNTERPART)}
        self.assertEqual(sorted(missing - excused), [], "neither in a table of docs/names.md nor in NO_COUNTERPART")

    def test_exceptions_are_of_use(self):
        for pattern in NO_COUNTERPART:
            with self.subTest(pattern=pattern):
                self.assertTrue(fnmatch.filter(self.functions, pattern))

    def test_torch_names_exist(self):
        """In the left column, every name that begins with torch. exists in PyTorch."""
        names = {name for cells in self.rows for text in document.code(cells[0]) for name in re.findall(r"^torch(?:\.\w+)+", text)}
        self.assertGreater(len(names), 150)
        for name in sorted(names):
            with self.subTest(name=name):
                module, attributes = importlib.import_module("torch"), name.split(".")[1:]
                for i, attribute in enumerate(attributes):
                    if not hasattr(module, attribute):
                        importlib.import_module("torch." + ".".join(attributes[:i + 1]))
                    module = getattr(module, attribute)


class Chinese(unittest.TestCase):
    def test_its_program_is_that_of_the_other_readme(self):
        code = [re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", document.programs(page)["train.c"])) for page in (README, CHINESE)]
        self.assertEqual(*code)
        self.assertEqual(document.sessions(README), document.sessions(CHINESE))

    def test_its_figures_are_those_of_the_other_pages(self):
        prose = re.sub(r"^```.*?^```$", "", CHINESE, flags=re.M | re.S)
        others = "".join(document.read(name) for name in ("README.md", "docs/parallel.md", "docs/training.md"))
        figures = set(re.findall(r"\d+(?:\.\d+)*", prose))
        self.assertGreater(len([figure for figure in figures if len(figure) > 2]), 5)
        for figure in figures:
            if len(figure) > 2:
                with self.subTest(figure=figure):
                    self.assertRegex(others, rf"(?<![\d.]){re.escape(figure)}(?![\d]|\.\d)")


class Links(unittest.TestCase):
    def test_they_lead_somewhere(self):
        for path in document.pages():
            for target, anchor in document.links(document.read(path)):
                with self.subTest(page=path, target=target, anchor=anchor):
                    whole = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
                    self.assertTrue(os.path.exists(os.path.join(document.SOURCE, whole)))
                    if anchor:
                        self.assertIn(anchor, document.anchors(document.read(whole)))


if __name__ == "__main__":
    skips.main()
