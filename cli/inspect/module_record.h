/* module_record.h - makes the state dict of a torch.nn.Module that was pickled whole, from its record. */
#ifndef TERN_CLI_INSPECT_MODULE_RECORD_H
#define TERN_CLI_INSPECT_MODULE_RECORD_H

#include "tensor/object.h"

/* Does the record have the three dicts that every module has? */
bool tern__module_record_is(const tern_object *record);
/* Returns the state dict with the names of Module.state_dict: parameters, then persistent buffers, then
 * submodules. The caller owns it. */
tern_object *tern__module_record_state_dict(const tern_object *record, tern_error *err);

#endif
