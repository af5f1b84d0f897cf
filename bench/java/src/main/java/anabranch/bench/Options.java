package anabranch.bench;

import java.util.HashMap;
import java.util.Map;

/** Command-line options, each written key=value. Unknown keys are refused when reading is done. */
final class Options {
    private final Map<String, String> given = new HashMap<>();

    Options(String[] args, int from) {
        for (int i = from; i < args.length; i++) {
            int eq = args[i].indexOf('=');
            if (eq < 1) {
                throw new IllegalArgumentException("expected key=value, got " + args[i]);
            }
            given.put(args[i].substring(0, eq), args[i].substring(eq + 1));
        }
    }

    String text(String key, String otherwise) {
        String value = given.get(key);
        return value == null ? otherwise : value;
    }

    String text(String key) {
        String value = given.get(key);
        if (value == null) {
            throw new IllegalArgumentException("missing option " + key + "=");
        }
        return value;
    }

    long number(String key, long otherwise) {
        String value = given.get(key);
        return value == null ? otherwise : Long.parseLong(value.replace("_", ""));
    }

    double seconds(String key, double otherwise) {
        String value = given.get(key);
        return value == null ? otherwise : Double.parseDouble(value);
    }

    boolean flag(String key, boolean otherwise) {
        String value = given.get(key);
        return value == null ? otherwise : Boolean.parseBoolean(value);
    }
}
