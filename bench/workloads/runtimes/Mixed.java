// Streams and lambdas, virtual calls, exceptions, strings and garbage in several threads, for some seconds.
import java.util.*;
import java.util.concurrent.*;
import java.util.function.*;
import java.util.stream.*;

public class Mixed {
    interface Shape { double area(); }
    record Circle(double r) implements Shape { public double area() { return Math.PI * r * r; } }
    record Square(double a) implements Shape { public double area() { return a * a; } }
    record Both(Shape one, Shape other) implements Shape { public double area() { return one.area() + other.area(); } }

    static long words(int seed) {
        Random random = new Random(seed);
        Map<String, Integer> counts = IntStream.range(0, 4000)
            .mapToObj(i -> "w" + random.nextInt(500))
            .collect(Collectors.toMap(w -> w, w -> 1, Integer::sum, TreeMap::new));
        return counts.entrySet().stream().filter(e -> e.getValue() > 3).sorted(Map.Entry.comparingByValue())
            .mapToLong(e -> e.getKey().hashCode() ^ e.getValue()).sum();
    }

    static double shapes(int depth) {
        Shape shape = depth % 2 == 0 ? new Circle(depth) : new Square(depth);
        for (int i = 0; i < 60; i++) shape = i % 3 == 0 ? new Both(shape, new Circle(i)) : new Both(new Square(i), shape);
        return shape.area();
    }

    static int parsed(int seed) {
        int good = 0;
        for (int i = 0; i < 200; i++) {
            String text = (i * 7 + seed) % 20 == 0 ? "none" : Integer.toString(i * seed);
            try { good += Integer.parseInt(text) & 1; } catch (NumberFormatException e) { good--; }
        }
        return good;
    }

    static long sorted(int seed) {
        int[] numbers = new Random(seed).ints(5000).toArray();
        Integer[] boxes = IntStream.of(numbers).boxed().toArray(Integer[]::new);
        Arrays.sort(boxes, Comparator.comparing(n -> n ^ seed));
        return boxes[17];
    }

    static final List<IntFunction<Number>> WORK = List.of(Mixed::words, Mixed::shapes, Mixed::parsed, Mixed::sorted,
        n -> String.join(",", Collections.nCopies(2000, "x" + n)).replaceAll("x(\\d)", "$1y").hashCode());

    public static void main(String[] arguments) throws Exception {
        long end = System.nanoTime() + Long.parseLong(arguments[0]) * 1_000_000;
        ExecutorService pool = Executors.newFixedThreadPool(3);
        List<Future<Long>> results = new ArrayList<>();
        for (int t = 0; t < 3; t++) {
            int own = t;
            results.add(pool.submit(() -> {
                long sum = 0;
                for (int n = own; System.nanoTime() < end; n++)
                    sum += WORK.get(n % WORK.size()).apply(n).longValue();
                return sum;
            }));
        }
        for (Future<Long> result : results) result.get();
        pool.shutdown();
        System.out.println("done");
    }
}
