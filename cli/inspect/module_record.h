/* module_record.h - the state dict of a torch.nn.Module that was pickled whole, from its inert record. */
#ifndef TERN_CLI_INSPECT_MODULE_RECORD_H
#define TERN_CLI_INSPECT_MODULE_RECORD_H

#include "tensor/object.h"

/* Has it the three dicts that every module has? */
bool tern__module_record_is(const tern_object *record);
/* Names as Module.state_dict makes them: parameters, then persistent buffers, then the modules inside. Yours.
 */
tern_object *tern__module_record_state_dict(const tern_object *record, tern_error *err);

#endif
