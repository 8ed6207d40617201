/* pickle_ops.c - the instructions of the pickle machine. */
#include "base/text.h"
#include "checkpoint/bytes.h"
#include "checkpoint/pickle_vm.h"
#include "checkpoint/dtypes.h"

#include <string.h>

enum { NAME = 512 };

/* ---- bytes ---- */

static int pickle_read_number(tern__vm *vm, int bytes, uint64_t *out)
{
    uint8_t text[8];
    int status = tern__vm_read(vm, text, (size_t)bytes);
    if (!status) *out = tern__bytes_get(text, bytes);
    return status;
}

/* Reads a line, without its newline. */
static int read_line(tern__vm *vm, char out[NAME])
{
    for (size_t at = 0; at < NAME; at++) {
        int status = tern__vm_read(vm, out + at, 1);
        if (status) return status;
        if (out[at] == '\n') {
            out[at] = '\0';
            return TERN_OK;
        }
        if (out[at] <= ' ' || out[at] > '~')
            return tern__vm_refuse(vm, TERN_E_FORMAT, "a name contains byte 0x%02x",
                                   (unsigned)(uint8_t)out[at]);
    }
    return tern__vm_refuse(vm, TERN_E_FORMAT, "a name is longer than %d bytes", NAME - 1);
}

/* ---- instructions ---- */

static int run_proto(tern__vm *vm, int bytes)
{
    uint64_t version = 0;
    int status = pickle_read_number(vm, bytes, &version);
    if (!status && version > 5)
        status = tern__vm_refuse(vm, TERN_E_UNSUPPORTED, "its pickle protocol is %llu, tern supports 2 to 5",
                                 (unsigned long long)version);
    return status;
}

static int run_skip(tern__vm *vm, int bytes)
{
    uint64_t number;
    return pickle_read_number(vm, bytes, &number);
}

static int run_stop(tern__vm *vm)
{
    vm->is_done = true;
    return TERN_OK;
}

static int run_mark(tern__vm *vm)
{
    return tern__vm_mark(vm);
}

/* Pops an item, or a mark if there is nothing above it. */
static int run_pop(tern__vm *vm)
{
    if (vm->mark_count && vm->marks[vm->mark_count - 1] == vm->count) {
        vm->mark_count--;
        return TERN_OK;
    }
    return tern__vm_pop(vm) ? TERN_OK : vm->err->code;
}

static int run_pop_mark(tern__vm *vm)
{
    tern_object **items = NULL;
    int64_t count = 0;
    return tern__vm_pop_mark(vm, &items, &count);
}

static int run_dup(tern__vm *vm)
{
    tern_object *top = tern__vm_pop(vm);
    int status = top ? tern__vm_push(vm, top) : vm->err->code;
    return status ? status : tern__vm_push(vm, top);
}

static int run_none(tern__vm *vm)
{
    return tern__vm_push(vm, tern__vm_none(vm));
}

static int run_true(tern__vm *vm)
{
    return tern__vm_push(vm, tern__vm_bool(vm, true));
}

static int run_false(tern__vm *vm)
{
    return tern__vm_push(vm, tern__vm_bool(vm, false));
}

static int run_int(tern__vm *vm, int bytes)
{
    uint64_t value = 0;
    int status = pickle_read_number(vm, bytes, &value);
    return status ? status
                  : tern__vm_push(vm, tern__vm_int(vm, bytes == 4 ? (int32_t)value : (int64_t)value));
}

/* Makes a string or bytes, whose text the caller fills in. */
static int new_text(tern__vm *vm, tern_object_kind kind, uint64_t length, tern_object **out, char **text)
{
    if (length > (uint64_t)(vm->source->end - vm->source->offset))
        return tern__vm_refuse(vm, TERN_E_FORMAT,
                               "a text of %llu bytes is longer than the rest of the pickle",
                               (unsigned long long)length);
    int status = tern__vm_charge(vm, TERN__VM_TEXT + (int64_t)length);
    if (status) return status;
    *out = tern__vm_take(vm, tern__object_text(kind, length, text, vm->err));
    return *out ? TERN_OK : TERN_E_MEMORY;
}

/* Returns the digits of a little-endian two's complement number, "-0x1f"; NULL after an error. */
static tern_object *hexadecimal_of(tern__vm *vm, uint8_t *bytes, int64_t length)
{
    static const char digits[] = "0123456789abcdef";
    bool is_negative = bytes[length - 1] & 0x80;
    for (int64_t i = 0, carry = 1; is_negative && i < length; i++) { /* negates it */
        carry += (uint8_t)~bytes[i];
        bytes[i] = (uint8_t)carry;
        carry >>= 8;
    }
    while (length > 1 && !bytes[length - 1]) length--;
    char *text;
    if (tern__vm_charge(vm, TERN__VM_TEXT + 2 * length + 3)) return NULL;
    tern_object *string = tern__vm_take(
        vm, tern__object_text(TERN_OBJECT_STRING, (size_t)(2 * length + 2 + is_negative), &text, vm->err));
    if (!string) return NULL;
    if (is_negative) *text++ = '-';
    *text++ = '0';
    *text++ = 'x';
    for (int64_t i = length - 1; i >= 0; i--) {
        *text++ = digits[bytes[i] >> 4];
        *text++ = digits[bytes[i] & 15];
    }
    return string;
}

/* Pushes a number that is too large for an int: a record of Python's int("0x1f..", 16). */
static int push_large(tern__vm *vm, uint64_t length)
{
    tern_object *bytes = NULL, *parts[2] = {0};
    char *data = NULL;
    int status = new_text(vm, TERN_OBJECT_BYTES, length, &bytes, &data);
    if (!status) status = tern__vm_read(vm, data, length);
    if (status) return status;
    parts[0] = hexadecimal_of(vm, (uint8_t *)data, (int64_t)length);
    parts[1] = parts[0] ? tern__vm_int(vm, 16) : NULL;
    tern_object *args = parts[1] ? tern__vm_list_of(vm, TERN_OBJECT_TUPLE, parts, 2) : NULL;
    return args ? tern__vm_push(vm, tern__vm_record(vm, TERN__PYTHON_INT, args)) : vm->err->code;
}

/* Reads a two's complement number of any length. */
static int run_long(tern__vm *vm, int bytes)
{
    uint64_t length = 0, value = 0;
    uint8_t text[8] = {0};
    int status = pickle_read_number(vm, bytes, &length);
    if (!status && length > sizeof(text)) return push_large(vm, length);
    if (!status) status = tern__vm_read(vm, text, length);
    if (status) return status;
    bool is_negative = length && text[length - 1] & 0x80;
    if (is_negative) memset(text + length, 0xff, sizeof(text) - length);
    value = tern__bytes_get(text, 8);
    return tern__vm_push(vm, tern__vm_int(vm, (int64_t)value));
}

static int run_float(tern__vm *vm, int bytes)
{
    uint64_t bits = 0;
    double value;
    int status = pickle_read_number(vm, bytes, &bits);
    if (status) return status;
    bits = __builtin_bswap64(bits);
    memcpy(&value, &bits, sizeof(value));
    return tern__vm_push(vm, tern__vm_float(vm, value));
}

static int read_text(tern__vm *vm, int bytes, tern_object_kind kind, tern_object **out, char **text)
{
    uint64_t length = 0;
    int status = pickle_read_number(vm, bytes, &length);
    if (!status) status = new_text(vm, kind, length, out, text);
    return status ? status : tern__vm_read(vm, *text, length);
}

static int run_unicode(tern__vm *vm, int bytes)
{
    tern_object *node = NULL;
    char *text = NULL;
    int status = read_text(vm, bytes, TERN_OBJECT_STRING, &node, &text);
    if (!status && tern__utf8_check(text, (size_t)tern_object_count(node)) >= 0)
        return tern__vm_refuse(vm, TERN_E_FORMAT, "a string is not UTF-8");
    return status ? status : tern__vm_push(vm, node);
}

static int run_bytes(tern__vm *vm, int bytes)
{
    tern_object *node = NULL;
    char *text = NULL;
    int status = read_text(vm, bytes, TERN_OBJECT_BYTES, &node, &text);
    return status ? status : tern__vm_push(vm, node);
}

/* A str of Python 2 becomes a string if it is UTF-8, else bytes. */
static int run_old_string(tern__vm *vm, int bytes)
{
    tern_object *node = NULL;
    char *text = NULL;
    int status = read_text(vm, bytes, TERN_OBJECT_BYTES, &node, &text);
    if (status) return status;
    if (tern__utf8_check(text, (size_t)tern_object_count(node)) < 0) node->kind = TERN_OBJECT_STRING;
    return tern__vm_push(vm, node);
}

static int run_empty_list(tern__vm *vm)
{
    return tern__vm_push(vm, tern__vm_list(vm, TERN_OBJECT_LIST));
}

static int run_empty_tuple(tern__vm *vm)
{
    return tern__vm_push(vm, tern__vm_list(vm, TERN_OBJECT_TUPLE));
}

static int run_empty_dict(tern__vm *vm)
{
    return tern__vm_push(vm, tern__vm_list(vm, TERN_OBJECT_DICT));
}

static int new_from_mark(tern__vm *vm, tern_object_kind kind)
{
    tern_object **items = NULL;
    int64_t count = 0;
    int status = tern__vm_pop_mark(vm, &items, &count);
    return status ? status : tern__vm_push(vm, tern__vm_list_of(vm, kind, items, count));
}

static int run_list(tern__vm *vm)
{
    return new_from_mark(vm, TERN_OBJECT_LIST);
}

static int run_tuple(tern__vm *vm)
{
    return new_from_mark(vm, TERN_OBJECT_TUPLE);
}

static int tuple_of(tern__vm *vm, int count)
{
    tern_object *items[3];
    for (int i = count - 1; i >= 0; i--)
        if (!(items[i] = tern__vm_pop(vm))) return vm->err->code;
    return tern__vm_push(vm, tern__vm_list_of(vm, TERN_OBJECT_TUPLE, items, count));
}

static int run_tuple1(tern__vm *vm)
{
    return tuple_of(vm, 1);
}

static int run_tuple2(tern__vm *vm)
{
    return tuple_of(vm, 2);
}

static int run_tuple3(tern__vm *vm)
{
    return tuple_of(vm, 3);
}

/* ---- filling containers; for an instance of a container class, its items become its state ---- */

static tern_object *container(tern__vm *vm, tern_object_kind kind)
{
    tern_object *target = tern__vm_pop(vm);
    if (!target) return NULL;
    if (target->kind == kind) return tern__vm_push(vm, target) ? NULL : target;
    if (target->kind != TERN_OBJECT_RECORD) {
        tern__vm_refuse(vm, TERN_E_FORMAT, "adds items of a %s to a %s", tern_object_kind_name(kind),
                        target->kind > TERN_OBJECT_RECORD ? "class" : tern_object_kind_name(target->kind));
        return NULL;
    }
    tern_object *items = tern__object_child(target, 1);
    if (!items || items->kind != kind) {
        items = tern__vm_list(vm, kind);
        if (items) tern__object_record_set(target, NULL, items);
    }
    return items && !tern__vm_push(vm, target) ? items : NULL;
}

static int append_all(tern__vm *vm, tern_object **items, int64_t count)
{
    tern_object *list = container(vm, TERN_OBJECT_LIST);
    int status = list ? TERN_OK : vm->err->code;
    for (int64_t i = 0; !status && i < count; i++) status = tern__vm_append(vm, list, items[i]);
    return status;
}

static int run_append(tern__vm *vm)
{
    tern_object *item = tern__vm_pop(vm);
    return item ? append_all(vm, &item, 1) : vm->err->code;
}

/* The items stay above the stack's top. Pushing the container back does not overwrite them, since it was
 * below them. */
static int run_appends(tern__vm *vm)
{
    tern_object **items = NULL;
    int64_t count = 0;
    int status = tern__vm_pop_mark(vm, &items, &count);
    return status ? status : append_all(vm, items, count);
}

static int set_all(tern__vm *vm, tern_object **items, int64_t count)
{
    if (count % 2) return tern__vm_refuse(vm, TERN_E_FORMAT, "a key has no item");
    tern_object *dict = container(vm, TERN_OBJECT_DICT);
    int status = dict ? TERN_OK : vm->err->code;
    for (int64_t i = 0; !status && i < count; i += 2) status = tern__vm_set(vm, dict, items[i], items[i + 1]);
    return status;
}

static int run_set(tern__vm *vm)
{
    tern_object *pair[2];
    for (int i = 1; i >= 0; i--)
        if (!(pair[i] = tern__vm_pop(vm))) return vm->err->code;
    return set_all(vm, pair, 2);
}

static int run_sets(tern__vm *vm)
{
    tern_object **items = NULL;
    int64_t count = 0;
    int status = tern__vm_pop_mark(vm, &items, &count);
    return status ? status : set_all(vm, items, count);
}

static int run_dict(tern__vm *vm)
{
    tern_object **items = NULL;
    int64_t count = 0;
    int status = tern__vm_pop_mark(vm, &items, &count);
    if (!status && count % 2) status = tern__vm_refuse(vm, TERN_E_FORMAT, "a key has no item");
    tern_object *dict = status ? NULL : tern__vm_list(vm, TERN_OBJECT_DICT);
    if (!dict) return vm->err->code;
    for (int64_t i = 0; !status && i < count; i += 2) status = tern__vm_set(vm, dict, items[i], items[i + 1]);
    return status ? status : tern__vm_push(vm, dict);
}

/* ---- the memo ---- */

static int run_put(tern__vm *vm, int bytes)
{
    uint64_t number = 0;
    int status = pickle_read_number(vm, bytes, &number);
    return status ? status : tern__vm_memo_set(vm, number);
}

static int run_memoize(tern__vm *vm)
{
    return tern__vm_memo_set(vm, (uint64_t)vm->memo_count);
}

static int run_get(tern__vm *vm, int bytes)
{
    uint64_t number = 0;
    int status = pickle_read_number(vm, bytes, &number);
    if (status) return status;
    if (number >= (uint64_t)vm->memo_count || !vm->memo[number])
        return tern__vm_refuse(vm, TERN_E_FORMAT, "the memo has no number %llu", (unsigned long long)number);
    return tern__vm_push(vm, vm->memo[number]);
}

/* ---- names and calls ---- */

static int push_global(tern__vm *vm, const char *module, const char *name)
{
    char full[2 * NAME + 2];
    snprintf(full, sizeof(full), "%s.%s", module, name);
    return tern__vm_push(vm, tern__vm_global(vm, full));
}

static int run_global(tern__vm *vm)
{
    char module[NAME], name[NAME];
    int status = read_line(vm, module);
    if (!status) status = read_line(vm, name);
    return status ? status : push_global(vm, module, name);
}

static bool is_name(const tern_object *object)
{
    const char *text = tern_object_to_string(object);
    if (!text || !*text || tern_object_count(object) >= NAME) return false;
    for (int64_t i = 0; i < tern_object_count(object); i++)
        if (text[i] <= ' ' || text[i] > '~') return false;
    return true;
}

static int run_stack_global(tern__vm *vm)
{
    tern_object *name = tern__vm_pop(vm), *module = name ? tern__vm_pop(vm) : NULL;
    if (!module) return vm->err->code;
    if (!is_name(name) || !is_name(module)) return tern__vm_refuse(vm, TERN_E_FORMAT, "a name is not valid");
    return push_global(vm, tern_object_to_string(module), tern_object_to_string(name));
}

static int run_call(tern__vm *vm)
{
    tern_object *args = tern__vm_pop(vm), *function = args ? tern__vm_pop(vm) : NULL;
    if (!function) return vm->err->code;
    if (args->kind != TERN_OBJECT_TUPLE)
        return tern__vm_refuse(vm, TERN_E_FORMAT, "the arguments are a %s, expected a tuple",
                               args->kind > TERN_OBJECT_RECORD ? "class" : tern_object_kind_name(args->kind));
    return tern__vm_push(vm, tern__vm_call(vm, function, args));
}

/* Drops the keyword arguments: only records get here. */
static int run_new_ex(tern__vm *vm)
{
    return tern__vm_pop(vm) ? run_call(vm) : vm->err->code;
}

/* Sets the state of an instance; drops the attributes of dicts and tensors. */
static int run_build(tern__vm *vm)
{
    tern_object *state = tern__vm_pop(vm), *target = state ? tern__vm_pop(vm) : NULL;
    if (!target) return vm->err->code;
    if (target->kind > TERN_OBJECT_RECORD)
        return tern__vm_refuse(vm, TERN_E_UNSUPPORTED, "a class gets a state");
    bool is_tensor =
        target->kind == TERN_OBJECT_RECORD && !strcmp(tern__object_name(target), TERN__TENSOR_RECORD);
    if (target->kind == TERN_OBJECT_RECORD && !is_tensor) tern__object_record_set(target, NULL, state);
    return tern__vm_push(vm, target);
}

static int run_storage(tern__vm *vm)
{
    tern_object *id = tern__vm_pop(vm);
    return id ? tern__vm_push(vm, tern__vm_storage_get(vm, id)) : vm->err->code;
}

/* ---- the table ---- */

static const struct {
    int (*run)(tern__vm *vm);
    int (*read)(tern__vm *vm, int bytes); /* instead, if the opcode has an operand of `bytes` bytes */
    int bytes;
} opcodes[256] = {
    [0x80] = {.read = run_proto, .bytes = 1},
    [0x95] = {.read = run_skip, .bytes = 8},
    ['.'] = {.run = run_stop},
    ['('] = {.run = run_mark},
    ['0'] = {.run = run_pop},
    ['1'] = {.run = run_pop_mark},
    ['2'] = {.run = run_dup},
    ['N'] = {.run = run_none},
    [0x88] = {.run = run_true},
    [0x89] = {.run = run_false},
    ['K'] = {.read = run_int, .bytes = 1},
    ['M'] = {.read = run_int, .bytes = 2},
    ['J'] = {.read = run_int, .bytes = 4},
    [0x8a] = {.read = run_long, .bytes = 1},
    [0x8b] = {.read = run_long, .bytes = 4},
    ['G'] = {.read = run_float, .bytes = 8},
    ['X'] = {.read = run_unicode, .bytes = 4},
    [0x8c] = {.read = run_unicode, .bytes = 1},
    [0x8d] = {.read = run_unicode, .bytes = 8},
    ['U'] = {.read = run_old_string, .bytes = 1},
    ['T'] = {.read = run_old_string, .bytes = 4},
    ['C'] = {.read = run_bytes, .bytes = 1},
    ['B'] = {.read = run_bytes, .bytes = 4},
    [0x8e] = {.read = run_bytes, .bytes = 8},
    [0x96] = {.read = run_bytes, .bytes = 8},
    [']'] = {.run = run_empty_list},
    [')'] = {.run = run_empty_tuple},
    ['}'] = {.run = run_empty_dict},
    [0x8f] = {.run = run_empty_list},
    ['l'] = {.run = run_list},
    [0x91] = {.run = run_list},
    ['t'] = {.run = run_tuple},
    ['d'] = {.run = run_dict},
    [0x85] = {.run = run_tuple1},
    [0x86] = {.run = run_tuple2},
    [0x87] = {.run = run_tuple3},
    ['a'] = {.run = run_append},
    ['e'] = {.run = run_appends},
    [0x90] = {.run = run_appends},
    ['s'] = {.run = run_set},
    ['u'] = {.run = run_sets},
    ['q'] = {.read = run_put, .bytes = 1},
    ['r'] = {.read = run_put, .bytes = 4},
    [0x94] = {.run = run_memoize},
    ['h'] = {.read = run_get, .bytes = 1},
    ['j'] = {.read = run_get, .bytes = 4},
    ['c'] = {.run = run_global},
    [0x93] = {.run = run_stack_global},
    ['R'] = {.run = run_call},
    [0x81] = {.run = run_call},
    [0x92] = {.run = run_new_ex},
    ['b'] = {.run = run_build},
    ['Q'] = {.run = run_storage},
};

int tern__vm_step(tern__vm *vm, uint8_t op)
{
    if (opcodes[op].run) return opcodes[op].run(vm);
    if (opcodes[op].read) return opcodes[op].read(vm, opcodes[op].bytes);
    return tern__vm_refuse(vm, TERN_E_FORMAT, "opcode 0x%02x is not one that torch.save writes", op);
}
