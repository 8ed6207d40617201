/* models.h - complete networks, with PyTorch's parameter names and initial weights.
 *
 * Threads: as modules (nn.h). */
#ifndef TERN_MODELS_H
#define TERN_MODELS_H

#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Multilayer perceptron: linear layers of sizes[0] -> sizes[1] -> .. -> sizes[count - 1] with ReLU between
 * them, as torch.nn.Sequential(Linear, ReLU, Linear, ..); parameters "0.weight", "0.bias", "2.weight" ...
 * count >= 2. (N, sizes[0]) -> (N, sizes[count - 1]). */
TERN_API tern_module *tern_mlp_new(const int64_t *sizes, int count, tern_rng *rng, tern_error *err);

/* torchvision's BasicBlock: relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)), with 3x3 convolutions. If
 * the stride or the number of channels changes, the shortcut is a 1x1 convolution and a batch norm
 * ("downsample"). (N, in, H, W) -> (N, out, H', W') */
TERN_API tern_module *tern_basic_block_new(int64_t in, int64_t out, int64_t stride, tern_rng *rng,
                                           tern_error *err);

#define TERN_RESNET_STAGES 4

typedef struct tern_resnet_opts {
    size_t size;
    int64_t in_channels; /* default 3                                                             */
    int64_t classes;     /* default 1000; 0: the net ends before fc                               */
    int stages;          /* 1 to TERN_RESNET_STAGES; default 4                                    */
    int blocks[TERN_RESNET_STAGES];       /* in each stage; default 2, 2, 2, 2 */
    int64_t channels[TERN_RESNET_STAGES]; /* of each stage; stem: the first; default 64, 128, 256, 512 */
    bool small_stem; /* 3x3 stride 1 and no max pool, for images of about 32x32; default false */
    bool kaiming;    /* initialise convolutions as torchvision: normal, fan out; false: as PyTorch's
                        Conv2d; default true                                                 */
    bool bottleneck; /* blocks of 1x1, 3x3 (with the stride) and 1x1 convolutions, whose results have 4
                        times the stage's channels; default false: basic blocks              */
    bool dilate[TERN_RESNET_STAGES]; /* the stage keeps the size of its input; it and the later stages double
                        the dilation. dilate[1] to dilate[3] are torchvision's
                        replace_stride_with_dilation; the first stage has no stride. Default false */
} tern_resnet_opts;
/* Returns the options of ResNet-18 (He et al. 2015, torchvision.models.resnet18). */
TERN_API tern_resnet_opts tern_resnet_defaults(void);
/* Returns the options of torchvision's resnet18, 34, 50, 101 or 152. For any other depth it returns options
 * without stages, which tern_resnet_new refuses. */
TERN_API tern_resnet_opts tern_resnet_preset(int depth);

/* Residual net. Every stage but the first begins with stride 2 (or dilates). Names are torchvision's (conv1,
 * bn1, layer1.0.conv1, layer2.0.downsample.0, fc ...), and initial weights, bit for bit. (N, in_channels, H,
 * W) -> (N, classes), or without fc (N, channels of the last stage, H', W'). torchvision.models.ResNet; its
 * basic blocks cannot dilate, here both of their convolutions do. E_RANGE: stages, blocks, channels;
 * E_INVALID: dilate[0]. */
TERN_API tern_module *tern_resnet_new(const tern_resnet_opts *opts, tern_rng *rng, tern_error *err);

typedef struct tern_deeplabv3_opts {
    size_t size;
    int depth;           /* of the backbone, as in tern_resnet_preset; default 50                     */
    int64_t in_channels; /* default 3                                                                 */
    int64_t classes;     /* default 21                                                                */
    int64_t channels[TERN_RESNET_STAGES]; /* of the backbone's stages; default 64, 128, 256, 512      */
    bool small_stem;       /* give the backbone a small stem, to detect small objects; default false  */
    bool aux;              /* add a second classifier on the last stage but one; default false        */
    int output_stride;     /* input size / feature size: the last stages dilate instead of striding.
                              4, 8, 16 or 32, with a small stem 1, 2, 4 or 8; default 8               */
    int64_t rates[3];      /* dilations of the pyramid; default 0s: 96, 192 and 288 / output_stride,
                              which is 12, 24, 36 at 8 and 6, 12, 18 at 16                            */
    int64_t head_channels; /* of the pyramid and the classifier; default 256                          */
    double dropout;        /* probability, after the pyramid; default 0.5                             */
    double aux_dropout;    /* probability, in the second classifier; default 0.1                      */
} tern_deeplabv3_opts;
TERN_API tern_deeplabv3_opts tern_deeplabv3_defaults(void);

/* DeepLabV3 (Chen et al. 2017): class scores of every pixel, resized bilinearly from the size of the
 * features. (N, in_channels, H, W) -> (N, classes, H, W). Names are torchvision's: backbone.conv1 ..,
 * classifier.0.convs.0.0 .., aux_classifier.0 .. In training the batch must be larger than 1, since the
 * pyramid's mean over an image is batch-normalised. torchvision.models.segmentation.deeplabv3_resnet50; depth
 * 18 makes a light one. E_RANGE: depth, output_stride, dropout, and the errors of the layers. */
TERN_API tern_module *tern_deeplabv3_new(const tern_deeplabv3_opts *opts, tern_rng *rng, tern_error *err);
/* Does what tern_forward does, and stores in *aux the scores of the second classifier, of the same shape, for
 * a loss of their own (torchvision's scripts add half of it); NULL if the net has none. If `aux` is NULL, and
 * with tern_forward, the second classifier is not computed. E_INVALID: another module. */
TERN_API tern_tensor *tern_deeplabv3_forward(tern_module *deeplabv3, tern_scope *scope, tern_tensor *x,
                                             tern_tensor **aux);

#define TERN_UNET_LEVELS 6

typedef enum tern_unet_norm { TERN_UNET_BATCH, TERN_UNET_GROUP } tern_unet_norm;

typedef struct tern_unet3d_opts {
    size_t size;
    int64_t in_channels; /* default 1                                                            */
    int64_t classes;     /* default 1                                                            */
    int64_t width;       /* channels of the first level; each further level has twice as many; default 32 */
    int levels;          /* 2 to TERN_UNET_LEVELS; default 4                                     */
    tern_unet_norm norm; /* batch norm or group norm; default TERN_UNET_BATCH                    */
    int64_t groups;      /* of the group norm; default 8                                         */
    bool deconv;         /* upsample by transposed convolutions, else trilinearly; default true  */
} tern_unet3d_opts;
TERN_API tern_unet3d_opts tern_unet3d_defaults(void);

/* 3-D U-Net (Cicek et al. 2016): each level has two 3x3x3 convolutions without bias, each with norm and ReLU.
 * Max pooling leads down. On the way up, the level's own features from the way down are concatenated before
 * those that come from below. (N, in_channels, D, H, W) -> (N, classes, D, H, W); sizes must be divisible by
 * 2^(levels - 1) (E_SHAPE). Names: encoder.0.0 (convolution), encoder.0.1 (norm), encoder.0.3, encoder.0.4
 * .., up.0 .., decoder.0.0 .., head. E_RANGE: levels, norm, and the errors of the layers. */
TERN_API tern_module *tern_unet3d_new(const tern_unet3d_opts *opts, tern_rng *rng, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
