/* transformer.h - multi-head attention and the layers of Vaswani et al. 2017, "Attention Is All You Need",
 * with PyTorch's names, state dicts and initial weights, bit for bit.
 *
 * Sequences are (T, N, E), or (N, T, E) with `batch_first`, or (T, E) without a batch. tern_forward calls
 * each of these modules without masks.
 *
 * Masks are PyTorch's: a mask of bool is true where a key does not take part, in contrast to that of
 * tern_scaled_dot_product_attention; one of floating point is added to the scores, and may have a
 * gradient. Both masks of a call and is_causal may be given together. A query for which no key takes part
 * gets 0 from the attention, where PyTorch gives NaN or 0, depending on how it computes. The weights of
 * the attention are never in memory, so they are not returned: PyTorch's need_weights=False.
 *
 * Threads: as modules (nn.h). */
#ifndef TERN_TRANSFORMER_H
#define TERN_TRANSFORMER_H

#include <tern/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- multi-head attention ---- */

typedef struct tern_multihead_attention_opts {
    size_t size;
    double dropout;     /* probability with which a weight of a key becomes 0 in training; default 0 */
    bool bias;          /* of all projections; default true                                          */
    bool batch_first;   /* default false                                                             */
    int64_t kdim, vdim; /* features of the keys and the values; default 0: as many as the queries    */
} tern_multihead_attention_opts;
TERN_API tern_multihead_attention_opts tern_multihead_attention_defaults(void);

/* torch.nn.MultiheadAttention(embed, heads): in_proj_weight (3 embed, embed), or q_proj_weight,
 * k_proj_weight and v_proj_weight if kdim or vdim is another; in_proj_bias (3 embed), out_proj.
 * tern_forward is the attention of a sequence to itself. E_RANGE: sizes, embed no multiple of heads,
 * dropout outside [0, 1]. */
TERN_API tern_module *tern_multihead_attention_new(int64_t embed, int64_t heads,
                                                   const tern_multihead_attention_opts *opts, tern_rng *rng,
                                                   tern_error *err);

typedef struct tern_multihead_attention_call_opts {
    size_t size;
    tern_tensor *attn_mask;        /* (T, S), or one for each head, (N heads, T, S); default NULL */
    tern_tensor *key_padding_mask; /* (N, S), without a batch (S); default NULL                   */
    bool is_causal;                /* query i sees keys 0 .. i only; default false                */
} tern_multihead_attention_call_opts;
TERN_API tern_multihead_attention_call_opts tern_multihead_attention_call_defaults(void);

/* Calls the module: queries q of length T, keys k and values v of length S -> as q. If two or all three
 * are one tensor, they are projected by one product. E_INVALID: another module; E_SHAPE: lengths,
 * features, masks. */
TERN_API tern_tensor *tern_multihead_attention_forward(tern_module *attention, tern_scope *scope,
                                                       tern_tensor *q, tern_tensor *k, tern_tensor *v,
                                                       const tern_multihead_attention_call_opts *opts);

/* ---- layers ---- */

typedef enum tern_transformer_activation {
    TERN_TRANSFORMER_RELU,
    TERN_TRANSFORMER_GELU /* with erf */
} tern_transformer_activation;

typedef struct tern_transformer_layer_opts {
    size_t size;
    int64_t feedforward;                    /* width of the feedforward network; default 2048          */
    double dropout;                         /* probability, also of the attention's; default 0.1       */
    tern_transformer_activation activation; /* default TERN_TRANSFORMER_RELU                           */
    double eps;                             /* of the layer norms; default 1e-5                        */
    bool batch_first;                       /* default false                                           */
    bool norm_first;                        /* norms before each part, not after it; default false     */
    bool bias;                              /* of linear layers and norms; default true                */
} tern_transformer_layer_opts;
TERN_API tern_transformer_layer_opts tern_transformer_layer_defaults(void);

/* torch.nn.TransformerEncoderLayer(embed, heads): self_attn, linear1, linear2, norm1, norm2. E_RANGE: as
 * tern_multihead_attention_new, and feedforward; E_INVALID: activation. */
TERN_API tern_module *tern_transformer_encoder_layer_new(int64_t embed, int64_t heads,
                                                         const tern_transformer_layer_opts *opts,
                                                         tern_rng *rng, tern_error *err);
/* torch.nn.TransformerEncoder(layer, num_layers, norm): layers.0, layers.1 .. and norm. The layers begin
 * with the same weights, as PyTorch's, which are copies of one. `norm`, which may be NULL, belongs to the
 * module from now on, also on error. E_RANGE: layers < 1, and the errors of a layer. */
TERN_API tern_module *tern_transformer_encoder_new(int layers, int64_t embed, int64_t heads,
                                                   const tern_transformer_layer_opts *opts, tern_module *norm,
                                                   tern_rng *rng, tern_error *err);

/* Masks of a call of an encoder, in each of its layers, or of one layer: as those of multi-head attention. */
typedef struct tern_transformer_encoder_call_opts {
    size_t size;
    tern_tensor *src_mask;             /* default NULL  */
    tern_tensor *src_key_padding_mask; /* default NULL  */
    bool is_causal;                    /* default false */
} tern_transformer_encoder_call_opts;
TERN_API tern_transformer_encoder_call_opts tern_transformer_encoder_call_defaults(void);

/* Call an encoder layer, or an encoder -> as src. */
TERN_API tern_tensor *tern_transformer_encoder_layer_forward(tern_module *layer, tern_scope *scope,
                                                             tern_tensor *src,
                                                             const tern_transformer_encoder_call_opts *opts);
TERN_API tern_tensor *tern_transformer_encoder_forward(tern_module *encoder, tern_scope *scope,
                                                       tern_tensor *src,
                                                       const tern_transformer_encoder_call_opts *opts);

/* torch.nn.TransformerDecoderLayer: self_attn, multihead_attn, linear1, linear2, norm1, norm2, norm3; and
 * torch.nn.TransformerDecoder. A decoder also needs the encoder's result, so tern_forward of it is
 * E_INVALID. */
TERN_API tern_module *tern_transformer_decoder_layer_new(int64_t embed, int64_t heads,
                                                         const tern_transformer_layer_opts *opts,
                                                         tern_rng *rng, tern_error *err);
TERN_API tern_module *tern_transformer_decoder_new(int layers, int64_t embed, int64_t heads,
                                                   const tern_transformer_layer_opts *opts, tern_module *norm,
                                                   tern_rng *rng, tern_error *err);

/* Masks of the attention of tgt to itself, and of tgt to memory. */
typedef struct tern_transformer_decoder_call_opts {
    size_t size;
    tern_tensor *tgt_mask, *memory_mask;                         /* default NULL  */
    tern_tensor *tgt_key_padding_mask, *memory_key_padding_mask; /* default NULL  */
    bool tgt_is_causal, memory_is_causal;                        /* default false */
} tern_transformer_decoder_call_opts;
TERN_API tern_transformer_decoder_call_opts tern_transformer_decoder_call_defaults(void);

/* Call a decoder layer, or a decoder: tgt of length T, memory (an encoder's result) of length S -> as tgt. */
TERN_API tern_tensor *tern_transformer_decoder_layer_forward(tern_module *layer, tern_scope *scope,
                                                             tern_tensor *tgt, tern_tensor *memory,
                                                             const tern_transformer_decoder_call_opts *opts);
TERN_API tern_tensor *tern_transformer_decoder_forward(tern_module *decoder, tern_scope *scope,
                                                       tern_tensor *tgt, tern_tensor *memory,
                                                       const tern_transformer_decoder_call_opts *opts);

#ifdef __cplusplus
}
#endif
#endif
