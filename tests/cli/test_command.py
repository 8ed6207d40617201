"""tern: the command itself, and tern info."""
import json
import os
import re
import subprocess
import tempfile
import unittest

import job
import skips

EMULATED = os.path.join(os.environ["TERN_BUILD"], "emulated")


class Command(unittest.TestCase):
    def test_help_and_version(self):
        for option in ("--help", "-h"):
            code, out, err = job.tern(option)
            self.assertEqual((code, err), (0, ""))
            for name in ("run", "new", "inspect", "convert", "tokenize", "generate", "info", "bench"):
                self.assertRegex(out, rf"\n  {name} +\w")
        for option in ("--version", "-V", "version"):
            code, out, err = job.tern(option)
            self.assertEqual((code, err), (0, ""))
            self.assertRegex(out, r"^tern \d+\.\d+\.\d+\n$")

    def test_help_of_a_command(self):
        """"help NAME" prints what "NAME --help" does, and starts nothing."""
        for words in ([], ["run"], ["new"], ["inspect"], ["bench"], ["bench", "step"], ["bench", "all_reduce"], ["tokenize"], ["generate"], ["completion"], ["man"]):
            with self.subTest(words=words):
                code, out, err = job.tern("help", *words)
                self.assertEqual((code, err), (0, ""))
                self.assertEqual(out, job.tern(*words, "--help")[1])
                self.assertTrue(out.startswith(" ".join(["usage: tern", *words]) + " "), out)
        self.assertEqual(job.tern("bench", "help", "conv"), job.tern("bench", "conv", "--help"))
        self.assertEqual(job.tern("help", "run", "echo", "started"), job.tern("run", "--help"))
        self.assertEqual(job.tern("help", "rnu")[::2], (2, 'tern: expected a command, got "rnu"\nDid you mean `tern run`?\n'))

    def test_help_fits_a_terminal(self):
        for words in (["run"], ["new"], ["inspect"], ["convert"], ["tokenize"], ["generate"], ["info"], ["man"], ["completion"], *(["bench", name] for name in ("step", "conv", "reduce", "barrier", "store"))):
            for line in job.tern(*words, "--help")[1].splitlines():
                self.assertLessEqual(len(line), 80, line)
                self.assertEqual(line, line.rstrip())

    def test_misspelled_words(self):
        for words, text in ((["rnu"], "tern run"), (["versoin"], None), (["ifno"], "tern info"), (["inspct"], "tern inspect"), (["convrt"], "tern convert"),
                            (["bnech"], "tern bench"), (["compl"], "tern completion"), (["train"], None), (["xyz"], None), (["bench", "stpe"], "tern bench step"),
                            (["bench", "allreduce"], "tern bench all_reduce"), (["bench", "zzz"], None)):
            with self.subTest(words=words):
                code, out, err = job.tern(*words)
                self.assertEqual((code, out), (2, ""))
                if text:
                    self.assertEqual(err.splitlines()[1:], [f"Did you mean `{text}`?"])
                else:
                    self.assertIn("usage: tern", err)
        for words, text in ((["run", "--nodes", "2", "true"], 'tern run: unknown option "--nodes"; did you mean --nnodes?'),
                            (["run", "--node_rnak", "2", "true"], 'tern run: unknown option "--node_rnak"; did you mean --node-rank?'),
                            (["inspect", "--jsno", "x"], "Did you mean --json?"), (["bench", "step", "--bacth=3"], None)):
            code, out, err = job.tern(*words)
            self.assertEqual((code, out), (2, ""))
            if text:
                self.assertIn(text + "\n", err)

    def test_a_full_disk_is_told(self):
        """Output that cannot be written, help included, is an error with the reason."""
        for args in (["--help"], ["--version"], ["info"], *([*command.split(), "--help"] for command in
                     ("run", "new", "inspect", "convert", "tokenize", "generate", "info", "bench", "bench step", "bench all_reduce"))):
            with self.subTest(args=args), open("/dev/full", "w") as full:
                code, _, err = job.tern(*args, stdout=full)
                who = " ".join(["tern", *(arg for arg in args if arg[0] != "-")])
                self.assertEqual((code, err), (1, f"{who}: cannot write: No space left on device\n"))

    def test_a_bench_without_its_output_has_failed(self):
        for args in (["all_reduce", "--sizes", "4", "--seconds", "0.01"], ["store", "--clients", "1", "--pairs", "10", "--rounds", "1"]):
            with self.subTest(args=args), open("/dev/full", "w") as full:
                code, _, err = job.tern("bench", *args, stdout=full)
                self.assertEqual((code, err), (1, "tern bench: cannot write: No space left on device\n"))

    def test_unknown_or_no_command(self):
        for args, text in (([], "expected a command\n"), (["fly"], 'expected a command, got "fly"\n')):
            code, out, err = job.tern(*args)
            self.assertEqual((code, out), (2, ""))
            self.assertTrue(err.startswith("tern: " + text))
            self.assertIn("usage: tern COMMAND", err)


class Info(unittest.TestCase):
    def test_rows(self):
        code, out, err = job.tern("info")
        self.assertEqual((code, err), (0, ""))
        rows = dict(line.split(None, 1) for line in out.splitlines())
        self.assertEqual("tern " + rows["tern"], job.tern("--version")[1].strip())
        self.assertLessEqual(int(rows["cores"].split()[0]), len(os.sched_getaffinity(0)))
        self.assertEqual(rows["page"], f"{os.sysconf('SC_PAGESIZE')} bytes")
        self.assertRegex(rows["devices"], r"^cpu, cpu:reference(, cuda:\d+)*$")
        self.assertRegex(rows["collectives"], r"^self, native(, [a-z+]+)*(; nccl\+ before any)?; debug\+ before any$")
        for name in ("oneDNN", "zlib", "libsodium", "cJSON"):
            self.assertRegex(rows[name], r"^\d+\.\d+")
        self.assertEqual(len({re.match(r"\S+ +", line).end() for line in out.splitlines()}), 1, "two aligned columns")

    def cores(self, env={}):
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
        return re.search(r"^cores .*", job.tern("info", env={**bare, **env})[1], re.M)[0]

    def test_cores_are_those_of_all_places(self):
        """The row counts all usable cores, although OpenMP binds the first thread to one place."""
        cores = self.cores()
        for name, value in (("OMP_PROC_BIND", "true"), ("OMP_PROC_BIND", "spread"), ("OMP_PLACES", "cores"), ("OMP_PROC_BIND", "false")):
            with self.subTest(name=name, value=value):
                self.assertEqual(self.cores({name: value}), cores)

    PLUGINS = {"figure": "libcairo2-dev", "jpeg": "libjpeg-dev", "png": "libpng-dev", "tiff": "libtiff-dev", "nifti": "libnifti-dev", "regex": "libpcre2-dev",
               "unicode": "libutf8proc-dev", "topology": "libhwloc-dev", "openmpi": "libopenmpi-dev", "mpich": "libmpich-dev", "gloo": "libgloo-dev"}

    def test_plugins(self):
        """Plug-ins that were built are listed; for the others there is a reason."""
        rows = dict(line.split(None, 1) for line in job.tern("info")[1].splitlines())
        for name in self.PLUGINS:
            with self.subTest(name=name):
                if os.path.exists(os.path.join(os.environ["TERN_BUILD"], f"tern_{name}.so")):
                    self.assertRegex(rows[name], r"^(tern_\w+\.so|Open MPI \d.*|MPICH \d.*|gloo \d.*)$")
                else:
                    self.assertTrue(rows[name].startswith("no: "), rows[name])

    def test_plugins_that_are_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "tern_png.so"), "w") as file:
                file.write("no library")
            code, out, err = job.tern("info", env={**os.environ, "TERN_PLUGIN_PATH": folder})
        self.assertEqual((code, err), (0, ""))
        rows = dict(line.split(None, 1) for line in out.splitlines())
        self.assertEqual(rows["collectives"], "self, native; debug+ before any")
        for name, package in self.PLUGINS.items():
            with self.subTest(name=name):
                why = (f"{folder}/tern_png.so: file too short (apt install {package})" if name == "png" else
                       f"{folder} has no such file; `make extras` in tern's sources installs {package} and builds it")
                self.assertEqual(rows[name], f"no: the plug-in tern_{name}.so cannot be loaded: {why}")

    def test_cuda_that_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            out = job.tern("info", env={**os.environ, "TERN_PLUGIN_PATH": folder, "CUDA_VISIBLE_DEVICES": "3,1",
                                         "TERN_CUDA_WITHOUT": "graphs"})[1]
        rows = dict(line.split(None, 1) for line in out.splitlines())
        self.assertEqual(rows["cuda"], f"no: the plug-in tern_cuda.so cannot be loaded: {folder} has no such file")
        self.assertEqual((rows["devices"], rows["visible"]), ("cpu, cpu:reference", "CUDA_VISIBLE_DEVICES=3,1"))
        self.assertEqual(rows["without"], "TERN_CUDA_WITHOUT=graphs")

    @unittest.skipUnless(skips.has_part("emulation"), "this build has no emulation of CUDA")
    def test_cuda(self):
        """With the plug-in of the emulation."""
        here = {**os.environ, "TERN_PLUGIN_PATH": EMULATED, "TERN_EMULATED_DEVICES": "2"}
        code, out, err = job.tern("info", env=here)
        rows = dict(line.split(None, 1) for line in out.splitlines())
        self.assertEqual((code, err, rows["devices"]), (0, "", "cpu, cpu:reference, cuda:0, cuda:1"))
        self.assertRegex(rows["cuda"], r"^CUDA \d+\.\d+")
        for name in ("cuda:0", "cuda:1"):
            self.assertRegex(rows[name], r"^.+, \d+\.\d GiB, compute capability \d+\.\d$")

    def test_launcher(self):
        """The row shows the rank that a group would take from the environment; a malformed environment is an error."""
        def launcher(**env):
            alone = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
            code, out, err = job.tern("info", env={**alone, **env})
            return code, re.findall(r"^launcher +(.*)$", out, re.M), err
        self.assertEqual(launcher(), (0, ["none"], ""))
        job_of_two = {"WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "7"}
        self.assertEqual(launcher(RANK="1", **job_of_two), (0, ["RANK/WORLD_SIZE, rank 1 of 2, at here port 7"], ""))
        self.assertEqual(launcher(RANK="0", WORLD_SIZE="1"), (0, ["RANK/WORLD_SIZE, rank 0 of 1"], ""))
        self.assertEqual(launcher(RANK="2", **job_of_two), (1, [], "tern: tern_group_open: RANK=2 is not below WORLD_SIZE=2\n"))

    def test_features_are_the_processors(self):
        with open("/proc/cpuinfo") as file:
            flags = re.search(r"^(?:flags|Features)\s*:(.*)$", file.read(), re.M)
        known = {"avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "sve"}
        want = known & set(flags.group(1).split()) if flags else set()
        row = re.search(r"^features +(.*)$", job.tern("info")[1], re.M).group(1)
        self.assertEqual(set(row.split()) if want else set(), want)

    def test_arm_names_no_model(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("processor\t: 0\nFeatures\t: fp asimd crc32 sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n")
            file.flush()
            there = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$1" /proc/cpuinfo && exec "$2" info']
            done = subprocess.run([*there, "sh", file.name, job.TERN], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if "unshare" in done.stderr or "mount" in done.stderr:
            self.skipTest("no namespace of one's own: " + done.stderr)
        rows = dict(line.split(None, 1) for line in done.stdout.splitlines())
        self.assertEqual((rows["processor"], rows["features"]), ("ARM, maker 0x41, part 0xd40", "asimd sve"))

    def test_json_has_the_same_rows(self):
        """Also those of a bad environment, which is told on stderr as with text."""
        for variables in ({}, {"CUDA_VISIBLE_DEVICES": '"quoted" \\ \t'}, {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "7"}):
            env = {**os.environ, **variables}
            text, as_json = job.tern("info", env=env), job.tern("info", "--json", env=env)
            rows = [line.split(None, 1) for line in text[1].splitlines()]
            self.assertEqual(as_json[::2], text[::2])
            self.assertEqual(list(json.loads(as_json[1]).items()), [(name, value) for name, value in rows])

    def test_help(self):
        for option in ("--help", "-h"):
            code, out, err = job.tern("info", option)
            self.assertEqual((code, err), (0, ""))
            self.assertTrue(out.startswith("usage: tern info [OPTIONS]\n"), out)
            self.assertIn("--json", out)

    def test_takes_no_arguments(self):
        code, _, err = job.tern("info", "now")
        self.assertEqual((code, err), (2, 'tern info: expected no arguments, got "now"\n'))


if __name__ == "__main__":
    skips.main()
