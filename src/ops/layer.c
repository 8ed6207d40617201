#include "ops/ops.h"

#include <stdio.h>
#include <string.h>

/* Returns the parameter's name without its last part. */
const char *tern__layer_text(const tern_tensor *weight, char text[TERN__LAYER_TEXT])
{
    char name[TERN__LAYER_TEXT - 4] = "";
    if (weight->leaf) weight->leaf->describe(weight->leaf, name, sizeof(name));
    char *dot = strrchr(name, '.');
    snprintf(text, TERN__LAYER_TEXT, dot ? " \"%.*s\"" : "", dot ? (int)(dot - name) : 0, name);
    return text;
}
