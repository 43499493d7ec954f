/* process.c: the life of a process. The library begins before main, or with the first call; at the end, the hardened
 * mode inspects what is free. observe.c and learner.c have destructors of their own. */

__attribute__((constructor)) static void constructor(void)
{
    if (!atomic_load(&started)) start();
    observe_begin();
    if (mode == MODE_LIBC) return;
    heap_here();
    ace_begin();
}

__attribute__((destructor)) static void destructor(void)
{
    if (mode == MODE_GUARDED && !is_dying()) guard_end();
}
