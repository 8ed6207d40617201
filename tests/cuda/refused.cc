/* refused.cc - src/cuda/cudnn/cudnn.cc on a cuDNN that is too old, cannot be opened or does not run what
 * it has planned: all are failures with cuDNN's message, whichever code it returns. */
#include "cuda/cudnn/cudnn.cc"

#include <cstring>

static struct {
    size_t version;
    cudnnStatus_t created, executed;
} fake;

static int failures;

/* ---- replacements of cuDNN's functions ---- */

size_t cudnnGetVersion(void)
{
    return fake.version;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *)
{
    return fake.created;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t)
{
    return fake.executed;
}

void cudnnGetLastErrorString(char *text, size_t size)
{
    std::snprintf(text, size, "the reason");
}

/* ---- tests ---- */

static void expect(const char *what, int status, const tern_error *err, int code, const char *text)
{
    bool is_so = status == code && err->code == code && std::strstr(err->text, text);
    if (is_so) return;
    std::printf("FAILED: %s: status %d, \"%s\", expected \"%s\"\n", what, status, err->text, text);
    failures++;
}

static void open(const char *what, size_t version, cudnnStatus_t created, const char *text)
{
    tern__cuda cuda = {};
    tern_device device = {};
    tern_error err = {};
    row r = row_of(nullptr, &err);
    device.state = &cuda;
    fake = {version, created, CUDNN_STATUS_SUCCESS};
    int status = open_library(&r, &device);
    expect(what, status, &err, TERN_E_SYSTEM, text);
    if (cuda.libraries[TERN__CUDA_CUDNN].state) failures++;
}

static void run(const char *what, cudnnStatus_t executed, const char *text)
{
    place at = {};
    tern__cuda cuda = {};
    tern_error err = {};
    char x, w, y;
    void *const data[TERN__CONV_OPERANDS] = {&x, &w, &y, nullptr};
    cuda.libraries[TERN__CUDA_CUDNN].state = &at;
    fake.executed = executed;
    int status = tern__cudnn_run(&cuda, nullptr, false, data, nullptr, &err);
    expect(what, status, &err, TERN_E_SYSTEM, text);
    if (err.native != (int)executed) failures++;
}

int main(void)
{
    open("an old one", 91502, CUDNN_STATUS_SUCCESS, "cuDNN 9.15.2 is loaded, cuDNN 9.16.0 or later");
    for (cudnnStatus_t code :
         {CUDNN_STATUS_NOT_INITIALIZED, CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER,
          CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE})
        open(cudnnGetErrorString(code), 91600, code, "cudnnCreate: CUDNN_STATUS_");
    for (cudnnStatus_t code : {CUDNN_STATUS_NOT_SUPPORTED, CUDNN_STATUS_EXECUTION_FAILED})
        run(cudnnGetErrorString(code), code, "the reason");
    if (!failures) std::printf("all is said\n");
    return failures != 0;
}
