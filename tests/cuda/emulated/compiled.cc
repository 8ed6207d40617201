/* compiled.cc - finds, loads and runs kernels as nvcc compiled them. */
#include "cuda_runtime.h"
#include "memory.h"
#include "../compiled/machine.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <map>
#include <string>
#include <vector>

/* ---- names of kernels ---- */

/* Kernels are local functions, so their file, which the symbol table names before them, is a part of
 * their name. */
struct named {
    std::string file, kernel;
};
static std::map<uintptr_t, named> names; /* by address in the plug-in */

static std::vector<char> contents_of(const char *path)
{
    std::vector<char> all;
    char part[1 << 16];
    FILE *file = std::fopen(path, "rb");
    if (!file) emulated_stop("the plug-in's own file is not there");
    for (size_t n; (n = std::fread(part, 1, sizeof(part), file)) > 0;) all.insert(all.end(), part, part + n);
    std::fclose(file);
    return all;
}

/* g++ marks the names of local functions with an L, nvcc does not. */
static std::string as_nvcc_has_it(const std::string &name)
{
    return name.compare(0, 3, "_ZL") == 0 ? "_Z" + name.substr(3) : name;
}

static void read_symbols(const char *elf, const ElfW(Shdr) & table, const char *text)
{
    const ElfW(Sym) *symbols = (const ElfW(Sym) *)(elf + table.sh_offset);
    std::string file;
    for (size_t i = 0; i < table.sh_size / sizeof(*symbols); i++) {
        const std::string name = text + symbols[i].st_name;
        const int type = ELF64_ST_TYPE(symbols[i].st_info), dot = (int)name.rfind(".cu");
        if (type == STT_FILE) file = dot > 0 ? name.substr(0, (size_t)dot) : "";
        if (type == STT_FUNC && ELF64_ST_BIND(symbols[i].st_info) == STB_LOCAL && !file.empty())
            names[symbols[i].st_value] = {file, as_nvcc_has_it(name)};
    }
}

static void read_names(const char *path)
{
    const std::vector<char> elf = contents_of(path);
    const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)elf.data();
    const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(elf.data() + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == SHT_SYMTAB)
            read_symbols(elf.data(), sections[i], elf.data() + sections[sections[i].sh_link].sh_offset);
}

static named name_of(const void *kernel)
{
    Dl_info own;
    dladdr((const void *)name_of, &own);
    if (names.empty()) read_names(own.dli_fname);
    return names[(uintptr_t)kernel - (uintptr_t)own.dli_fbase];
}

/* ---- loading ---- */

struct loaded {
    compiled_kernel *run;
    unsigned shared; /* bytes of the kernel's own shared memory */
};

static std::string object_of(const named &name)
{
    const std::string command = std::getenv("TERN_EMULATED_COMPILED") + (" " + name.file) + " " + name.kernel;
    char path[4096] = "";
    FILE *output = popen(command.c_str(), "r");
    const bool has_path = output && std::fgets(path, sizeof(path), output);
    if (!output || pclose(output) != 0 || !has_path)
        emulated_stop(("a kernel that cannot be compiled: " + command).c_str());
    path[std::strcspn(path, "\n")] = 0;
    return path;
}

static const loaded &load(const void *kernel)
{
    static std::map<const void *, loaded> all;
    loaded &k = all[kernel];
    if (k.run) return k;
    void *object = dlopen(object_of(name_of(kernel)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!object) emulated_stop(dlerror());
    k.run = (compiled_kernel *)dlsym(object, "compiled_run");
    k.shared = *(const unsigned *)dlsym(object, "compiled_shared");
    return k;
}

/* ---- running ---- */

struct start {
    compiled_kernel *run;
    void **args;
};

static void set(unsigned (&to)[3], const dim3 &from)
{
    to[0] = from.x;
    to[1] = from.y;
    to[2] = from.z;
}

static void thread(void *ctx)
{
    const start *s = (const start *)ctx;
    machine m = {{},
                 {},
                 {},
                 {},
                 cudaGridDependencySynchronize,
                 cudaTriggerProgrammaticLaunchCompletion,
                 __syncthreads,
                 __syncwarp,
                 __cluster_barrier_arrive,
                 __cluster_barrier_wait,
                 emulated_lane,
                 emulated_shuffle,
                 emulated_rank,
                 emulated_shared_at,
                 __pipeline_memcpy_async,
                 __pipeline_commit,
                 __pipeline_wait_prior,
                 emulated_stop};
    set(m.tid, threadIdx);
    set(m.ctaid, blockIdx);
    set(m.ntid, blockDim);
    set(m.nctaid, gridDim);
    s->run(&m, s->args);
}

bool emulated_compiled(const emulated_kernel &kernel, void **args)
{
    if (!std::getenv("TERN_EMULATED_COMPILED")) return false;
    const loaded &k = load(kernel.kernel);
    emulated_kernel larger = kernel;
    start s = {k.run, args};
    larger.shared += k.shared;
    emulated_run(larger, thread, &s);
    return true;
}
