/* optim.h - an optimizer from inside. */
#ifndef TERN_SRC_OPTIM_H
#define TERN_SRC_OPTIM_H

#include "nn/nn.h"

#include <tern/optim.h>

struct tern_optim {
    tern__seal *seal; /* borrowed from the module */
    tern_sgd_opts sgd;
    char *momentum[TERN_DTYPE_COUNT]; /* parallel to the seal's ranges; NULL without momentum */
};

#endif
