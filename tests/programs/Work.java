// Maps, parallel streams and short-lived threads; the compiler runs in the same virtual machine first.
import java.util.*;
import java.util.stream.*;

class Work {
    public static void main(String[] arguments) throws Exception {
        Map<Integer, String> map = new TreeMap<>();
        for (int i = 0; i < 200000; i++) map.put(i * 31 % 65537, "v".repeat(i % 50));
        System.out.println(IntStream.range(0, 400000).parallel().mapToObj(i -> "x" + i % 977).distinct().count());
        System.out.println(map.values().stream().mapToInt(String::length).sum());
        for (int i = 0; i < 200; i++) {
            Thread thread = new Thread(() -> new byte[100000].clone());
            thread.start();
            thread.join();
        }
    }
}
