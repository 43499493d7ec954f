/* operators.c: C++'s operator new and delete, in all their forms, for preload.c: a call of new is as short as one of
 * malloc, and its site is the program's, not the C++ library's.
 *
 * A form that C++17 ([new.delete]) defines by another one calls that one as the program finds it, for a program may
 * have replaced it. A program that is linked with another allocator would find the forms that are missing here there,
 * so none is. What fails is left to the C++ library: it calls the new_handler, throws and catches. */

#define OPERATOR(symbol) __asm__(symbol) __attribute__((visibility("default")))

typedef struct nothrow nothrow_t;

static bool is_ours(void *function)
{
    Dl_info there, here;
    return dladdr(function, &there) != 0 && dladdr((void *)is_ours, &here) != 0 && there.dli_fbase == here.dli_fbase;
}

/* The operator that the caller would have without these: of the first library of the program that has one, else of the
 * caller's own, as a plugin's may be. Ends the program where there is none. */
static COLD void *operator_next(const char *symbol, void *caller)
{
    void *next = dlsym != NULL ? dlsym(RTLD_NEXT, symbol) : NULL;
    Dl_info there;
    if (next == NULL && dlsym != NULL && dladdr(caller, &there) != 0) {
        void *object = dlopen(there.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        if (object != NULL) next = dlsym(object, symbol), dlclose(object);
    }
    if (next == NULL || is_ours(next)) fatal("no memory, and no C++ library to say so, for", (uintptr_t)caller);
    return next;
}

#define NEXT(function, symbol, ...)                                                                                    \
    ((__typeof__(&(function)))operator_next(symbol, __builtin_return_address(0)))(__VA_ARGS__)

/* --- new ---------------------------------------------------------------------------------------------------------- */

static NOINLINE void *new_missed(size_t size)
{
    void *block = allocate(size);
    return LIKELY(block != NULL) ? block : NEXT(new_missed, "_Znwm", size);
}

/* The miss by a tail call, so that it returns to the program. */
static HIT void *new_one(size_t size)
{
    if (UNLIKELY(size >= front.tiny_end)) return new_missed(size);
    uintptr_t block;
    return LIKELY(bin_pop_own(bin_of_size(size), &block)) ? (void *)block : new_missed(size);
}
static void *(*found_new)(size_t) = new_one; /* as the program finds it, and so the others */

static void *new_array(size_t size) { return found_new(size); }
static void *(*found_new_array)(size_t) = new_array;

static void *new_aligned(size_t size, size_t alignment)
{
    void *block = hak_aligned_alloc(alignment, size);
    return LIKELY(block != NULL) ? block : NEXT(new_aligned, "_ZnwmSt11align_val_t", size, alignment);
}
static void *(*found_new_aligned)(size_t, size_t) = new_aligned;

static void *new_array_aligned(size_t size, size_t alignment) { return found_new_aligned(size, alignment); }
static void *(*found_new_array_aligned)(size_t, size_t) = new_array_aligned;

/* These would catch what those throw that they call, which only C++ can: where the program has replaced one, they too
 * are left to the C++ library. */
static void *new_nothrow(size_t size, const nothrow_t *tag)
{
    void *block = found_new == new_one ? allocate(size) : NULL;
    return LIKELY(block != NULL) ? block : NEXT(new_nothrow, "_ZnwmRKSt9nothrow_t", size, tag);
}

static void *new_array_nothrow(size_t size, const nothrow_t *tag)
{
    void *block = found_new == new_one && found_new_array == new_array ? allocate(size) : NULL;
    return LIKELY(block != NULL) ? block : NEXT(new_array_nothrow, "_ZnamRKSt9nothrow_t", size, tag);
}

static void *new_aligned_nothrow(size_t size, size_t alignment, const nothrow_t *tag)
{
    void *block = found_new_aligned == new_aligned ? hak_aligned_alloc(alignment, size) : NULL;
    if (LIKELY(block != NULL)) return block;
    return NEXT(new_aligned_nothrow, "_ZnwmSt11align_val_tRKSt9nothrow_t", size, alignment, tag);
}

static void *new_array_aligned_nothrow(size_t size, size_t alignment, const nothrow_t *tag)
{
    bool ours = found_new_aligned == new_aligned && found_new_array_aligned == new_array_aligned;
    void *block = ours ? hak_aligned_alloc(alignment, size) : NULL;
    if (LIKELY(block != NULL)) return block;
    return NEXT(new_array_aligned_nothrow, "_ZnamSt11align_val_tRKSt9nothrow_t", size, alignment, tag);
}

/* --- delete ------------------------------------------------------------------------------------------------------- */

static HIT void delete_one(void *block) { release(block); }
static void (*found_delete)(void *) = delete_one;
static void delete_sized(void *block, size_t size) { (void)size, found_delete(block); }
static void delete_nothrow(void *block, const nothrow_t *tag) { (void)tag, found_delete(block); }
static void delete_array(void *block) { found_delete(block); }
static void (*found_delete_array)(void *) = delete_array;
static void delete_array_sized(void *block, size_t size) { (void)size, found_delete_array(block); }
static void delete_array_nothrow(void *block, const nothrow_t *tag) { (void)tag, found_delete_array(block); }

static void delete_aligned(void *block, size_t alignment) { (void)alignment, release(block); }
static void (*found_delete_aligned)(void *, size_t) = delete_aligned;
static void delete_aligned_sized(void *block, size_t size, size_t alignment)
{
    (void)size, found_delete_aligned(block, alignment);
}
static void delete_aligned_nothrow(void *block, size_t alignment, const nothrow_t *tag)
{
    (void)tag, found_delete_aligned(block, alignment);
}
static void delete_array_aligned(void *block, size_t alignment) { found_delete_aligned(block, alignment); }
static void (*found_delete_array_aligned)(void *, size_t) = delete_array_aligned;
static void delete_array_aligned_sized(void *block, size_t size, size_t alignment)
{
    (void)size, found_delete_array_aligned(block, alignment);
}
static void delete_array_aligned_nothrow(void *block, size_t alignment, const nothrow_t *tag)
{
    (void)tag, found_delete_array_aligned(block, alignment);
}

/* --- under their own names ---------------------------------------------------------------------------------------- */

#define NAMED(symbol, function)                                                                                        \
    extern __typeof__(function) function##_named OPERATOR(symbol) __attribute__((alias(#function)))

NAMED("_Znwm", new_one);
NAMED("_Znam", new_array);
NAMED("_ZnwmSt11align_val_t", new_aligned);
NAMED("_ZnamSt11align_val_t", new_array_aligned);
NAMED("_ZnwmRKSt9nothrow_t", new_nothrow);
NAMED("_ZnamRKSt9nothrow_t", new_array_nothrow);
NAMED("_ZnwmSt11align_val_tRKSt9nothrow_t", new_aligned_nothrow);
NAMED("_ZnamSt11align_val_tRKSt9nothrow_t", new_array_aligned_nothrow);
NAMED("_ZdlPv", delete_one);
NAMED("_ZdlPvm", delete_sized);
NAMED("_ZdlPvRKSt9nothrow_t", delete_nothrow);
NAMED("_ZdaPv", delete_array);
NAMED("_ZdaPvm", delete_array_sized);
NAMED("_ZdaPvRKSt9nothrow_t", delete_array_nothrow);
NAMED("_ZdlPvSt11align_val_t", delete_aligned);
NAMED("_ZdlPvmSt11align_val_t", delete_aligned_sized);
NAMED("_ZdlPvSt11align_val_tRKSt9nothrow_t", delete_aligned_nothrow);
NAMED("_ZdaPvSt11align_val_t", delete_array_aligned);
NAMED("_ZdaPvmSt11align_val_t", delete_array_aligned_sized);
NAMED("_ZdaPvSt11align_val_tRKSt9nothrow_t", delete_array_aligned_nothrow);

/* A program may have its own. */
__attribute__((constructor)) static void operators_find(void)
{
    const struct {
        const char *symbol;
        void *found; /* a pointer to a function */
    } called[] = {{"_Znwm", &found_new},
                  {"_Znam", &found_new_array},
                  {"_ZnwmSt11align_val_t", &found_new_aligned},
                  {"_ZnamSt11align_val_t", &found_new_array_aligned},
                  {"_ZdlPv", &found_delete},
                  {"_ZdaPv", &found_delete_array},
                  {"_ZdlPvSt11align_val_t", &found_delete_aligned},
                  {"_ZdaPvSt11align_val_t", &found_delete_array_aligned}};
    for (int i = 0; i < COUNT(called) && dlsym != NULL; i++) {
        void *function = dlsym(RTLD_DEFAULT, called[i].symbol);
        if (function != NULL) memcpy(called[i].found, &function, sizeof function);
    }
}
