# Functions that begin at the end of a page and go on in the next one. Each returns edi + 1.
        .intel_syntax noprefix
        .text
        .p2align 12
        .skip 4093, 0x90
        .globl three_bytes_before
        .type three_bytes_before, @function
three_bytes_before:
        nop
        mov eax, edi
        inc eax
        ret
        .size three_bytes_before, . - three_bytes_before

        .p2align 12
        .skip 4095, 0x90
        .globl last_byte
        .type last_byte, @function
last_byte:
        push rbp
        lea eax, [rdi + 1]
        pop rbp
        ret
        .size last_byte, . - last_byte
        .skip 64, 0x90

        .section .note.GNU-stack, "", @progbits
