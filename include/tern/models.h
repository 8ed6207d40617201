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

typedef struct tern_vit_opts {
    size_t size;
    int64_t in_channels;         /* default 3                                                      */
    int64_t classes;             /* default 1000                                                   */
    int64_t image_size;          /* of both sides; a multiple of patch_size; default 224           */
    int64_t patch_size;          /* of both sides; default 16                                      */
    int layers;                  /* default 12                                                     */
    int64_t heads;               /* default 12                                                     */
    int64_t hidden_dim;          /* features of a token; default 768                               */
    int64_t mlp_dim;             /* width of the feedforward networks; default 3072                */
    double dropout;              /* probability, after embeddings, attention and in MLPs; default 0 */
    double attention_dropout;    /* probability, of the attention's weights; default 0             */
    int64_t representation_size; /* width of a layer with tanh before the scores; default 0: none  */
    double eps;                  /* of the layer norms; default 1e-6                               */
} tern_vit_opts;
/* Returns the options of ViT-B/16 (Dosovitskiy et al. 2020, torchvision.models.vit_b_16). */
TERN_API tern_vit_opts tern_vit_defaults(void);
/* Returns the options of torchvision's "vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32" or "vit_h_14" (whose
 * patches are 14x14), or of "vit_tiny" (Touvron et al. 2020, DeiT-Ti): 12 layers of 3 heads, 192 features,
 * patches of 16x16. For any other name it returns options without layers, which tern_vit_new refuses. */
TERN_API tern_vit_opts tern_vit_preset(const char *name);

/* Vision transformer: a token for each patch of an image, and one for its class. Names are torchvision's
 * (class_token, conv_proj, encoder.pos_embedding, encoder.layers.encoder_layer_0.ln_1 .., encoder.ln,
 * heads.head), and initial weights, bit for bit; those of the scores are 0. (N, in_channels, image_size,
 * image_size) -> (N, classes). torchvision.models.VisionTransformer. tern_pretrained_open makes one of a
 * folder of transformers' ViTForImageClassification. E_RANGE: layers, sizes, and the errors of the layers;
 * E_MEMORY, also if the weights are more than the machine's memory; its forward: E_SHAPE. */
TERN_API tern_module *tern_vit_new(const tern_vit_opts *opts, tern_rng *rng, tern_error *err);

/* The names are those of a config.json of transformers' BertModel. */
typedef struct tern_bert_opts {
    size_t size;
    int64_t vocab_size;                  /* default 30522                                    */
    int64_t hidden_size;                 /* default 768                                      */
    int num_hidden_layers;               /* default 12                                       */
    int64_t num_attention_heads;         /* default 12                                       */
    int64_t intermediate_size;           /* default 3072                                     */
    int64_t max_position_embeddings;     /* default 512                                      */
    int64_t type_vocab_size;             /* default 2                                        */
    int64_t pad_token_id;                /* its row begins as 0s, gets no gradient; -1: none; default 0 */
    double layer_norm_eps;               /* default 1e-12                                    */
    double hidden_dropout_prob;          /* default 0.1                                      */
    double attention_probs_dropout_prob; /* default 0.1                                      */
    double initializer_range;            /* standard deviation of all matrices; default 0.02 */
    bool add_pooling_layer;              /* with pooler.dense; default true                  */
} tern_bert_opts;
/* Returns the options of bert-base-uncased. */
TERN_API tern_bert_opts tern_bert_defaults(void);

/* BERT's encoder (Devlin et al. 2018), with the names of transformers' BertModel
 * (embeddings.word_embeddings.weight, encoder.layer.0.attention.self.query.weight ..,
 * pooler.dense.weight), and initial weights, bit for bit. Its activation is gelu with erf; positions are
 * absolute. With a NULL `rng` all weights but the norms' are 0, to be loaded; tern_pretrained_open reads
 * transformers' folders (language_model.h). E_RANGE: num_hidden_layers, sizes, and the errors of the layers;
 * E_MEMORY, also if the weights are more than the machine's memory. */
TERN_API tern_module *tern_bert_new(const tern_bert_opts *opts, tern_rng *rng, tern_error *err);

typedef struct tern_bert_call_opts {
    size_t size;
    tern_tensor *attention_mask; /* not 0 where a token takes part, of any dtype: (N, T), or for each query
                                  * (N, T, T); default NULL: all take part */
    tern_tensor *token_type_ids; /* (N, T), i64 or i32; default NULL: 0s */
    tern_tensor *position_ids;   /* (N, T) or (1, T), i64 or i32; default NULL: 0 .. T - 1 */
} tern_bert_call_opts;
TERN_API tern_bert_call_opts tern_bert_call_defaults(void);

/* Returns the last hidden states: ids (N, T), i64 or i32 -> (N, T, hidden_size). tern_forward is the same
 * without options. A token for which no token takes part gets 0 from the attention, where transformers
 * gives the mean of all. E_SHAPE: T above max_position_embeddings, a mask or ids of another shape;
 * E_INVALID: another module. */
TERN_API tern_tensor *tern_bert_forward(tern_module *bert, tern_scope *scope, tern_tensor *input_ids,
                                        const tern_bert_call_opts *opts);
/* Returns tanh of a linear layer of each sequence's first state, which transformers calls pooler_output:
 * last hidden states (N, T, hidden_size) -> (N, hidden_size). E_INVALID: another module, or one without a
 * pooler. */
TERN_API tern_tensor *tern_bert_pooler_forward(tern_module *bert, tern_scope *scope, tern_tensor *states);

#ifdef __cplusplus
}
#endif
#endif
