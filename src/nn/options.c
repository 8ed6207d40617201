/* options.c - a module's options as text. Ranks compare it, besides kinds and shapes (parallel/signature.c).
 */
#include "base/text.h"
#include "nn/nn.h"

void tern__options_add(tern_module *module, const char *name, int count, const int64_t *values)
{
    char *text = module->tree->options;
    size_t size = sizeof(module->tree->options);
    tern__text_append(text, size, " %s", name);
    for (int i = 0; i < count; i++)
        tern__text_append(text, size, "%c%lld", i ? 'x' : ' ', (long long)values[i]);
}

void tern__options_add_real(tern_module *module, const char *name, double value)
{
    tern__text_append(module->tree->options, sizeof(module->tree->options), " %s %.9g", name, value);
}
