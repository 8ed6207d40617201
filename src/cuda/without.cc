/* without.cc - TERN_CUDA_WITHOUT="overlap,graphs": if something is wrong with a GPU, its driver or this
 * plug-in, each of these features can be disabled to see whether it is the cause. Everything also works
 * without them. */
#include "cuda/without.h"

#include <cstdlib>

#define VARIABLE "TERN_CUDA_WITHOUT"

typedef struct part {
    const char *name;
    bool *is_used;
} part;

static int take_away(const part *parts, size_t count, const char *word, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (std::strlen(parts[i].name) == length && !std::memcmp(parts[i].name, word, length)) {
            *parts[i].is_used = false;
            return TERN_OK;
        }
    return TERN_E_ENV;
}

int tern__cuda_go_without(tern__cuda *cuda, tern_error *err)
{
    const part parts[] = {{"overlap", &cuda->overlaps},
                          {"clusters", &cuda->has_clusters},
                          {"graphs", &cuda->has_graphs},
                          {"export", &cuda->exports},
                          {"small_products", &cuda->has_small_gemms}};
    const char *words = std::getenv(VARIABLE), *word = words;
    while (word && *words) {
        size_t length = std::strcspn(word, ",");
        if (take_away(parts, sizeof(parts) / sizeof(*parts), word, length))
            return tern__error_set(err, "tern_device_open", TERN_E_ENV,
                                   VARIABLE "=\"%s\": there is no \"%.*s\", only overlap, clusters, graphs, "
                                            "export and small_products",
                                   words, (int)length, word);
        word = word[length] ? word + length + 1 : nullptr;
    }
    return TERN_OK;
}
