/* codec.c - loads the plug-ins of image formats. */
#include "image/codec.h"

#include "base/plugin.h"

#include <stdatomic.h>

typedef struct place {
    const char *format, *file;
} place;

static const place places[TERN__CODEC_COUNT] = {
    [TERN__CODEC_JPEG] = {"JPEG", "tern_jpeg.so"},
    [TERN__CODEC_PNG] = {"PNG", "tern_png.so"},
    [TERN__CODEC_TIFF] = {"TIFF", "tern_tiff.so"},
};

const tern_image_codec *tern__codec_open(tern__codec which, const char *whose, const char *func,
                                         tern_error *err)
{
    static const tern_image_codec *_Atomic opened[TERN__CODEC_COUNT];
    const tern_image_codec *codec = atomic_load(&opened[which]);
    const place *p = &places[which];
    tern_error missing = {0};
    if (codec) return codec;
    codec = tern__plugin_open(p->file, TERN_IMAGE_SYMBOL, &missing);
    if (codec && codec->abi == TERN_IMAGE_ABI) {
        atomic_store(&opened[which], codec);
        return codec;
    }
    if (codec)
        tern__error_set(err, func, TERN_E_UNSUPPORTED, "%s: %s plug-in \"%s\" has ABI %d, expected %d", whose,
                        p->format, codec->name, codec->abi, TERN_IMAGE_ABI);
    else
        tern__error_set(err, func, TERN_E_UNSUPPORTED, "%s: %s: %s", whose, p->format, missing.text);
    return NULL;
}
