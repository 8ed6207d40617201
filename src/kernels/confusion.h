/* confusion.h - the attributes of the kernels that compare predictions with labels. */
#ifndef TERN_SRC_KERNELS_CONFUSION_H
#define TERN_SRC_KERNELS_CONFUSION_H

#include "kernels/labels.h"

/* How a prediction is made: the class with the first largest score (NaN counts as the largest), a score
 * above a threshold, or a class given directly. */
typedef enum tern__predict { TERN__PREDICT_LARGEST, TERN__PREDICT_ABOVE, TERN__PREDICT_CLASS } tern__predict;

typedef struct tern__confusion_attr {
    tern__labels labels;
    int64_t ignored, predict;
    double threshold;
} tern__confusion_attr;

static inline tern__labels tern__predictions(const tern__confusion_attr *attr)
{
    tern__labels labels = attr->labels;
    labels.what = "prediction";
    return labels;
}

#endif
