/* options.c - a module's options as text. Ranks compare it, besides kinds and shapes (parallel/signature.c).
 */
#include "nn/nn.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void TERN__PRINTF(2, 3) append(tern_module *module, const char *fmt, ...)
{
    char *text = module->tree->options;
    size_t used = strlen(text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + used, sizeof(module->tree->options) - used, fmt, args);
    va_end(args);
}

void tern__options_add(tern_module *module, const char *name, int count, const int64_t *values)
{
    append(module, " %s", name);
    for (int i = 0; i < count; i++) append(module, "%c%lld", i ? 'x' : ' ', (long long)values[i]);
}

void tern__options_add_real(tern_module *module, const char *name, double value)
{
    append(module, " %s %.9g", name, value);
}
