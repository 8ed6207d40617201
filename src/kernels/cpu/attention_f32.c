/* attention_f32.c - attention's loops in f32, to which they convert bf16 and f16. */
#include "kernels/cpu/width.h"

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/lanes.h"

TERN__DEFINE_TURN(vector_turn, tern__lanes)

#define REAL                    float
#define VECTOR                  tern__lanes
#define INTEGERS                tern__masks
#define WORDS                   tern__words
#define WIDTH                   TERN__LANES
#define MANTISSA                23
#define BIAS                    127
#define GET                     tern__lanes_get
#define SET                     tern__lanes_set
#define PAIR                    1
#define FACTOR                  REAL
#define FACTORS                 VECTOR
#define MULTIPLY_ADD(sum, a, b) ((sum) + (a) * (b))
#include "kernels/cpu/attention_few.h"

const tern__attention_fns TERN__OF_WIDTH(tern__attention_f32) = {
    forward_room, attention_forward, few_room, attention_few, backward_room, attention_backward};
